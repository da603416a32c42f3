import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.message.RequestHeaderData;
import org.apache.kafka.common.message.ResponseHeaderData;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.MessageUtil;

/** Encodes the samples of make_kafka_frames.py with Kafka's own classes: one line of hex for each, headers included. */
public class KafkaFrames {
    public static void main(String[] arguments) throws Exception {
        for (JsonNode sample : new ObjectMapper().readTree(new File(arguments[0]))) {
            ApiKeys api = ApiKeys.forId(sample.get("key").asInt());
            short version = (short) sample.get("version").asInt();
            boolean request = sample.get("kind").asText().equals("request");
            String name = "org.apache.kafka.common.message." + sample.get("api").asText()
                + (request ? "Request" : "Response") + "Data";
            ApiMessage body = (ApiMessage) Class.forName(name + "JsonConverter")
                .getMethod("read", JsonNode.class, short.class)
                .invoke(null, sample.get("value"), version);
            ApiMessage header = request
                ? new RequestHeaderData().setRequestApiKey(api.id).setRequestApiVersion(version)
                    .setCorrelationId(7).setClientId("client-é")
                : new ResponseHeaderData().setCorrelationId(7);
            short headerVersion = request ? api.requestHeaderVersion(version) : api.responseHeaderVersion(version);
            System.out.println(hex(MessageUtil.toByteBufferAccessor(header, headerVersion).buffer())
                + hex(MessageUtil.toByteBufferAccessor(body, version).buffer()));
        }
    }

    private static String hex(ByteBuffer buffer) {
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return HexFormat.of().formatHex(bytes);
    }
}
