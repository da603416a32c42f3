import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.MemoryRecordsBuilder;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.utils.ByteBufferOutputStream;

/**
 * Writes tests/protocol/records/written_by_java/CODEC.bin: two record batches each, as the Java client makes them.
 * java -cp 'libs/*' WriteBatches.java tests/protocol/records/written_by_java (kafka-clients 4.2.0 wrote those there).
 * What is in them is said once more in test_other_clients.py.
 */
public class WriteBatches {
    public static void main(String[] arguments) throws Exception {
        for (CompressionType codec : CompressionType.values()) {
            ByteArrayOutputStream log = new ByteArrayOutputStream();
            log.write(batch(codec, 0, 70, TimestampType.CREATE_TIME));
            log.write(batch(codec, 100, 3, TimestampType.LOG_APPEND_TIME));
            Files.write(Path.of(arguments[0], codec.name + ".bin"), log.toByteArray());
        }
    }

    private static byte[] batch(CompressionType codec, long baseOffset, int count, TimestampType type) {
        MemoryRecordsBuilder builder = new MemoryRecordsBuilder(
            new ByteBufferOutputStream(1024), (byte) 2, Compression.of(codec).build(), type, baseOffset, 4242L,
            77L, (short) 3, 9, true, false, -1, 1 << 30);
        for (int i = 0; i < count; i++) {
            byte[] key = i % 5 == 0 ? null : ("key " + i).getBytes();
            byte[] value = i % 7 == 0 ? null : new byte[i == 69 ? 9000 : 3 * i];
            for (int j = 0; value != null && j < value.length; j++) value[j] = (byte) (i + j % 10);
            Header[] headers = i % 3 != 0 ? new Header[0]
                : new Header[] {new RecordHeader("a", new byte[] {(byte) i}), new RecordHeader("a", (byte[]) null)};
            builder.appendWithOffset(baseOffset + 2 * i, 1_700_000_000_000L + i * 1000 - i * i, key, value, headers);
        }
        ByteBuffer buffer = builder.build().buffer();
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return bytes;
    }
}
