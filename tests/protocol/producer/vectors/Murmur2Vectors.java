import java.util.HexFormat;
import java.util.Random;
import org.apache.kafka.common.utils.Utils;

/**
 * Prints keys and what Java's producer makes of them, one a line: the key in hex, its murmur2 hash, its partition of 7.
 *
 * java -cp 'KAFKA_JARS/*' tests/protocol/producer/vectors/Murmur2Vectors.java > tests/protocol/producer/vectors/murmur2.txt
 */
public class Murmur2Vectors {
    public static void main(String[] arguments) {
        Random random = new Random(42);
        for (int length = 0; length < 200; length++) {
            byte[] key = new byte[length];
            random.nextBytes(key);
            int hash = Utils.murmur2(key);
            System.out.println(HexFormat.of().formatHex(key) + " " + hash + " " + Utils.toPositive(hash) % 7);
        }
    }
}
