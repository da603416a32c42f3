import org.apache.kafka.common.errors.InvalidMetadataException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.protocol.Errors;

/** Prints kafka_errors.txt: java -cp 'FOLDER/*' KafkaErrors.java, where FOLDER holds kafka-clients and slf4j-api. */
public class KafkaErrors {
    public static void main(String[] arguments) {
        System.out.println("# code name retriable invalid-metadata, as in Kafka 4.4.0's Java client");
        for (Errors error : Errors.values())
            System.out.println(error.code() + " " + error.name()
                + " " + (error.exception() instanceof RetriableException)
                + " " + (error.exception() instanceof InvalidMetadataException));
    }
}
