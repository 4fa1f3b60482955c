import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.ServiceUrlProvider;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.impl.AutoClusterFailover;
import org.apache.pulsar.client.impl.ControlledClusterFailover;

/**
 * A producer that sends all the time and a consumer that acknowledges all: {@code Traffic TOPIC SERVICE_URL auto OTHER_URL}, or
 * {@code … controlled PROVIDER_URL}, or {@code … one}. On standard output: {@code + NUMBER} for what was confirmed, {@code - NUMBER}
 * for what was received, {@code ! ERROR}. A line of standard input ends the producing; the program ends when all that was confirmed is
 * received.
 */
public final class Traffic {
    static final int CHECK_MILLIS = 100;
    static final Set<Integer> CONFIRMED = ConcurrentHashMap.newKeySet();
    static final Set<Integer> RECEIVED = ConcurrentHashMap.newKeySet();
    static volatile boolean stopping;

    public static void main(String[] args) throws Exception {
        String topic = args[0];
        try (PulsarClient client = client(args)) {
            Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("sub").replicateSubscriptionState(true)
                    .acknowledgmentGroupTime(500, TimeUnit.MILLISECONDS) // late, as on a busy machine
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
            Producer<byte[]> producer = client.newProducer().topic(topic).sendTimeout(0, TimeUnit.SECONDS).create();
            Thread producing = new Thread(() -> produce(producer));
            Thread consuming = new Thread(() -> consume(consumer));
            producing.start();
            consuming.start();
            new BufferedReader(new InputStreamReader(System.in)).readLine();
            stopping = true;
            producing.join();
            consuming.join();
        }
        System.exit(0);
    }

    static PulsarClient client(String[] args) throws Exception {
        ServiceUrlProvider following = switch (args[2]) {
            case "auto" -> AutoClusterFailover.builder().primary(args[1]).secondary(List.of(args[3]))
                    .failoverDelay(CHECK_MILLIS, TimeUnit.MILLISECONDS).switchBackDelay(CHECK_MILLIS, TimeUnit.MILLISECONDS)
                    .checkInterval(CHECK_MILLIS, TimeUnit.MILLISECONDS).build();
            case "controlled" -> ControlledClusterFailover.builder().defaultServiceUrl(args[1]).urlProvider(args[3])
                    .checkInterval(CHECK_MILLIS, TimeUnit.MILLISECONDS).build();
            default -> null;
        };
        var builder = PulsarClient.builder().operationTimeout(20, TimeUnit.SECONDS).maxBackoffInterval(1, TimeUnit.SECONDS);
        return (following == null ? builder.serviceUrl(args[1]) : builder.serviceUrlProvider(following)).build();
    }

    static void produce(Producer<byte[]> producer) {
        for (int number = 0; !stopping; number++) {
            try {
                producer.send(("" + number).getBytes());
                CONFIRMED.add(number);
                say("+ " + number);
                Thread.sleep(2);
            } catch (PulsarClientException | InterruptedException error) {
                say("! " + error);
            }
        }
    }

    static void consume(Consumer<byte[]> consumer) {
        while (!(stopping && RECEIVED.containsAll(CONFIRMED))) {
            try {
                Message<byte[]> message = consumer.receive(200, TimeUnit.MILLISECONDS);
                if (message != null) {
                    int number = Integer.parseInt(new String(message.getData()));
                    RECEIVED.add(number);
                    say("- " + number);
                    consumer.acknowledge(message);
                }
            } catch (PulsarClientException error) {
                say("! " + error);
            }
        }
    }

    static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private Traffic() {}
}
