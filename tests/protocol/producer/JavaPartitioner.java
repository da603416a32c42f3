import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Base64;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;

/** Where Java's producer puts keys: Base64 on standard input, one a line; a partition of 7 and one of 12 for each. */
public class JavaPartitioner {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder out = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            byte[] key = Base64.getDecoder().decode(line);
            out.append(BuiltInPartitioner.partitionForKey(key, 7)).append(' ');
            out.append(BuiltInPartitioner.partitionForKey(key, 12)).append('\n');
        }
        System.out.print(out);
    }
}
