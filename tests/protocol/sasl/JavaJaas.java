import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Collections;
import java.util.Iterator;
import java.util.Map;
import java.util.TreeMap;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.common.config.types.Password;
import org.apache.kafka.common.security.JaasContext;

/** Reads texts of sasl.jaas.config, one a line in base64, and says what Kafka's client makes of each. */
public class JavaJaas {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            System.out.println(told(new String(Base64.getDecoder().decode(line), StandardCharsets.UTF_8)));
        }
    }

    private static String told(String text) {
        try {
            Map configs = Collections.singletonMap("sasl.jaas.config", new Password(text));
            AppConfigurationEntry entry =
                (AppConfigurationEntry) JaasContext.loadClientContext(configs).configurationEntries().get(0);
            StringBuilder told = new StringBuilder(coded(entry.getLoginModuleName()));
            Map options = new TreeMap(entry.getOptions());
            for (Iterator each = options.entrySet().iterator(); each.hasNext();) {
                Map.Entry option = (Map.Entry) each.next();
                told.append(' ').append(coded((String) option.getKey())).append('=').append(coded((String) option.getValue()));
            }
            return told.toString();
        } catch (Exception error) {
            return "refused";
        }
    }

    private static String coded(String text) {
        return "." + Base64.getEncoder().withoutPadding().encodeToString(text.getBytes(StandardCharsets.UTF_8)).replace('=', '.');
    }
}
