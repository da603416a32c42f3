import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;

/**
 * Assigns with Kafka's own assignors: a group as JSON on each line of input, what its members get on each of output.
 * Plain enough (no generics, no lambdas) for Janino, which compiles it where Java comes without a compiler.
 */
public class JavaAssignors {
    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Map group = (Map) json.readValue(line, Map.class);
            Class assignor = Class.forName((String) group.get("assignor"));
            Cluster cluster = cluster((Map) group.get("topics"));
            Map members = members((List) group.get("members"));
            long startedNs = System.nanoTime();
            Map assignments = ((ConsumerPartitionAssignor) assignor.getDeclaredConstructor(new Class[0]).newInstance(new Object[0]))
                .assign(cluster, new ConsumerPartitionAssignor.GroupSubscription(members)).groupAssignment();
            Map found = new HashMap();
            found.put("took_ms", (System.nanoTime() - startedNs) / 1e6);
            for (Object member : assignments.keySet())
                members.put(member, bytes((ConsumerPartitionAssignor.Assignment) assignments.get(member)));
            found.put("assignments", members);
            System.out.println(json.writeValueAsString(found));
        }
    }

    private static Map members(List rows) {
        Map members = new LinkedHashMap();
        for (Object each : rows) {
            Map row = (Map) each;
            ByteBuffer bytes = ByteBuffer.wrap(Base64.getDecoder().decode((String) row.get("subscription")));
            ConsumerPartitionAssignor.Subscription subscription = ConsumerProtocol.deserializeSubscription(bytes);
            subscription.setGroupInstanceId(Optional.ofNullable((String) row.get("instance_id")));
            members.put(row.get("member_id"), subscription);
        }
        return members;
    }

    /** Topics by name; of each partition the racks of its replicas. */
    private static Cluster cluster(Map topics) {
        List partitions = new ArrayList();
        for (Object topic : topics.keySet()) {
            int number = 0;
            for (Object racks : (List) topics.get(topic)) {
                Node[] replicas = replicas((List) racks);
                partitions.add(new PartitionInfo((String) topic, number++, null, replicas, replicas));
            }
        }
        return new Cluster("cluster", Collections.emptyList(), partitions, Collections.emptySet(), Collections.emptySet());
    }

    private static Node[] replicas(List racks) {
        Node[] replicas = new Node[racks.size()];
        for (int place = 0; place < replicas.length; place++)
            replicas[place] = new Node(place, "host", 9092, (String) racks.get(place));
        return replicas;
    }

    private static byte[] bytes(ConsumerPartitionAssignor.Assignment assignment) {
        ByteBuffer buffer = ConsumerProtocol.serializeAssignment(assignment);
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return bytes;
    }
}
