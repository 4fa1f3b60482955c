import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Transactions of one topic: {@code Transactions SERVICE_URL TOPIC SUBSCRIPTION MESSAGES}. Batches of messages are published outside of
 * any transaction, in one that is committed, in one that is aborted, and outside again. Then the subscription acknowledges the first
 * half of what it received in a transaction that is committed, and one more message in one that is aborted. On standard output: a line
 * for each message that is to be read, in order, and then "acknowledged" before each that counts as acknowledged.
 */
public final class Transactions {
    static final int SECONDS_MAX = 60;

    public static void main(String[] args) throws Exception {
        String topic = args[1];
        int messages = Integer.parseInt(args[3]);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).enableTransaction(true).build()) {
            Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName(args[2])
                    .subscriptionType(SubscriptionType.Shared).isAckReceiptEnabled(true)
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
            Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false).sendTimeout(0, TimeUnit.SECONDS).create();
            List<String> kept = new ArrayList<>();
            publish(producer, null, "before", messages, kept);
            Transaction committed = begun(client);
            publish(producer, committed, "committed", messages, kept);
            committed.commit().get();
            Transaction aborted = begun(client);
            publish(producer, aborted, "aborted", messages, new ArrayList<>());
            aborted.abort().get();
            publish(producer, null, "after", messages, kept);
            List<Message<byte[]>> received = new ArrayList<>();
            for (String expected : kept) {
                Message<byte[]> message = consumer.receive(SECONDS_MAX, TimeUnit.SECONDS);
                if (message == null || !expected.equals(new String(message.getData()))) {
                    throw new IllegalStateException("expected " + expected + ", got " + message);
                }
                received.add(message);
                System.out.println(expected);
            }
            Transaction acknowledging = begun(client);
            for (int index = 0; index < received.size() / 2; index++) {
                consumer.acknowledgeAsync(received.get(index).getMessageId(), acknowledging).get();
                System.out.println("acknowledged " + kept.get(index));
            }
            acknowledging.commit().get();
            Transaction withdrawn = begun(client);
            consumer.acknowledgeAsync(received.get(received.size() - 1).getMessageId(), withdrawn).get();
            withdrawn.abort().get();
        }
        System.exit(0);
    }

    static Transaction begun(PulsarClient client) throws Exception {
        return client.newTransaction().withTransactionTimeout(SECONDS_MAX, TimeUnit.SECONDS).build().get();
    }

    static void publish(Producer<byte[]> producer, Transaction transaction, String kind, int messages, List<String> published)
            throws Exception {
        for (int number = 0; number < messages; number++) {
            String body = kind + "-" + number;
            (transaction == null ? producer.newMessage() : producer.newMessage(transaction)).value(body.getBytes()).send();
            published.add(body);
        }
    }
}
