import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * What the official Java client sees of a broker: {@code Program SERVICE_URL ADMIN_URL RUN [CASE…]}. Each case is a line of JSON on
 * standard output, {"case", "saw"} or {"case", "error"}; nothing in it depends on the cluster, so that the lines of two brokers can be
 * compared. RUN makes the names of topics differ from those of other runs.
 */
public final class Program {
    static final int CASE_SECONDS_MAX = 60;
    static final int AT_ONCE = 6;

    interface Case {
        Object see(Side side) throws Exception;
    }

    /** What a case needs of the broker; its topic is its own. */
    record Side(PulsarClient client, PulsarAdmin admin, String serviceUrl, String topic) {
        Producer<byte[]> producer() throws Exception {
            return producing().create();
        }

        ProducerBuilder<byte[]> producing() {
            return client.newProducer().topic(topic).enableBatching(false);
        }

        ConsumerBuilder<byte[]> consuming(String subscription, SubscriptionType type) {
            return consuming(Schema.BYTES, subscription, type);
        }

        <T> ConsumerBuilder<T> consuming(Schema<T> schema, String subscription, SubscriptionType type) {
            return client.newConsumer(schema).topic(topic).subscriptionName(subscription).subscriptionType(type)
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).isAckReceiptEnabled(true);
        }
    }

    static Map<String, Object> map(Object... pairs) {
        Map<String, Object> map = new LinkedHashMap<>();
        for (int at = 0; at < pairs.length; at += 2) {
            map.put((String) pairs[at], pairs[at + 1]);
        }
        return map;
    }

    static String text(Message<?> message) {
        return message == null ? null : new String(message.getData());
    }

    /** The next messages, acknowledged; null where none comes in time. */
    static List<String> texts(Consumer<byte[]> consumer, int count) throws Exception {
        List<String> texts = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            Message<byte[]> message = consumer.receive(10, TimeUnit.SECONDS);
            texts.add(text(message));
            if (message != null) {
                consumer.acknowledge(message);
            }
        }
        return texts;
    }

    /** The name of the class of what a call fails with; null if it does not. */
    static String failing(java.util.concurrent.Callable<?> call) {
        try {
            call.call();
            return null;
        } catch (Throwable error) {
            return error.getClass().getSimpleName();
        }
    }

    public static void main(String[] args) throws Exception {
        Map<String, Case> cases = new LinkedHashMap<>();
        MessagingCases.add(cases);
        SubscriptionCases.add(cases);
        SchemaCases.add(cases);
        List<String> wanted = args.length > 3 ? List.of(args).subList(3, args.length) : List.copyOf(cases.keySet());
        ObjectMapper json = new ObjectMapper();
        ExecutorService threads = Executors.newFixedThreadPool(AT_ONCE);
        Map<String, Future<Object>> running = new LinkedHashMap<>();
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build();
                PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(args[1]).build()) {
            for (String name : wanted) {
                String topic = "persistent://public/default/java-" + name + "-" + args[2];
                Side side = new Side(client, admin, args[0], topic);
                running.put(name, threads.submit(() -> cases.get(name).see(side)));
            }
            for (Map.Entry<String, Future<Object>> each : running.entrySet()) {
                Map<String, Object> line = map("case", each.getKey());
                try {
                    line.put("saw", each.getValue().get(CASE_SECONDS_MAX, TimeUnit.SECONDS));
                } catch (ExecutionException error) {
                    line.put("error", error.getCause().getClass().getSimpleName());
                    System.err.println(each.getKey() + ": " + error.getCause());
                    error.getCause().printStackTrace();
                } catch (TimeoutException error) {
                    line.put("error", "no end within " + CASE_SECONDS_MAX + " s");
                }
                System.out.println(json.writeValueAsString(line));
                System.out.flush();
            }
        } finally {
            threads.shutdownNow();
        }
        System.exit(0);
    }

    private Program() {}
}
