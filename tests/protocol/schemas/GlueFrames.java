import com.amazonaws.services.schemaregistry.common.configs.GlueSchemaRegistryConfiguration;
import com.amazonaws.services.schemaregistry.serializers.SerializationDataEncoder;
import com.amazonaws.services.schemaregistry.serializers.avro.AvroSerializer;
import com.amazonaws.services.schemaregistry.serializers.json.JsonDataWithSchema;
import com.amazonaws.services.schemaregistry.serializers.json.JsonSerializer;
import com.amazonaws.services.schemaregistry.serializers.protobuf.ProtobufSerializer;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.google.protobuf.DescriptorProtos.FileDescriptorProto;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.DynamicMessage;
import java.io.File;
import java.util.Base64;
import java.util.HexFormat;
import java.util.Map;
import java.util.UUID;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.io.DecoderFactory;

/** Writes the samples of make_glue_frames.py with AWS's own serialisers: a JSON array of schema and frame for each. */
public class GlueFrames {
    public static void main(String[] arguments) throws Exception {
        for (JsonNode sample : new ObjectMapper().readTree(new File(arguments[0]))) {
            GlueSchemaRegistryConfiguration configuration = new GlueSchemaRegistryConfiguration(
                Map.of("region", "eu-central-1", "compression", sample.get("compression").asText()));
            String schema = sample.path("schema").asText();
            byte[] payload;
            if (sample.get("format").asText().equals("glue-avro")) {
                Schema parsed = new Schema.Parser().parse(schema);
                payload = new AvroSerializer().serialize(new GenericDatumReader<Object>(parsed)
                    .read(null, DecoderFactory.get().jsonDecoder(parsed, sample.get("value").toString())));
            } else if (sample.get("format").asText().equals("glue-json")) {
                payload = JsonSerializer.builder().configs(configuration).build()
                    .serialize(JsonDataWithSchema.builder(schema, sample.get("value").toString()).build());
            } else {
                FileDescriptorProto file = FileDescriptorProto.parseFrom(decode(sample.get("file")));
                Descriptor type = FileDescriptor.buildFrom(file, new FileDescriptor[0]).findMessageTypeByName("Order");
                for (String name : sample.get("message").asText().split("\\.")) {
                    Descriptor nested = name.equals("Order") ? type : type.findNestedTypeByName(name);
                    type = nested != null ? nested : type.getFile().findMessageTypeByName(name);
                }
                DynamicMessage message = DynamicMessage.parseFrom(type, decode(sample.get("bytes")));
                ProtobufSerializer serializer = ProtobufSerializer.builder().configs(configuration).build();
                schema = serializer.getSchemaDefinition(message);
                payload = serializer.serialize(message);
            }
            byte[] frame = new SerializationDataEncoder(configuration)
                .write(payload, UUID.fromString(sample.get("version_id").asText()));
            System.out.println(new ObjectMapper().writeValueAsString(
                new String[] {schema, HexFormat.of().formatHex(frame)}));
        }
    }

    private static byte[] decode(JsonNode text) {
        return Base64.getDecoder().decode(text.asText());
    }
}
