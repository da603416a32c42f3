// Sarama as a peer of the tests: it writes record batches of every codec, and reads what others wrote.
//
//	sarama produce BOOTSTRAP TOPIC         rows from standard input; partition n with codec n: none, gzip, snappy, lz4, zstd
//	sarama consume BOOTSTRAP TOPIC COUNT   COUNT rows of all partitions
//	sarama group BOOTSTRAP TOPIC GROUP SESSION_MS
//	                                       rows of what it is given as a member, until standard input ends
//	sarama partition COUNT                 for keys in Base64 from standard input: hash, reference hash, CRC-32, murmur2
//
// A row is a JSON object on a line: partition, offset (when read), key, value, headers, timestamp_ms; bytes are Base64.
// Ends with 1 after a minute without a row.
package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

type Header struct {
	Key   []byte `json:"key"`
	Value []byte `json:"value"`
}

type Row struct {
	Partition   int32    `json:"partition"`
	Offset      int64    `json:"offset"`
	Key         []byte   `json:"key"`
	Value       []byte   `json:"value"`
	Headers     []Header `json:"headers"`
	TimestampMs int64    `json:"timestamp_ms"`
}

func main() {
	if os.Args[1] == "partition" {
		count, err := strconv.Atoi(os.Args[2])
		check(err)
		partition(int32(count))
		return
	}
	bootstrap, topic := []string{os.Args[2]}, os.Args[3]
	switch os.Args[1] {
	case "produce":
		produce(bootstrap, topic)
	case "consume":
		count, err := strconv.Atoi(os.Args[4])
		check(err)
		consume(bootstrap, topic, count)
	case "group":
		sessionMs, err := strconv.Atoi(os.Args[5])
		check(err)
		beMember(bootstrap, topic, os.Args[4], time.Duration(sessionMs)*time.Millisecond)
	default:
		log.Fatalf("produce, consume, group or partition, not %q", os.Args[1])
	}
}

func settings() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	return config
}

func produce(bootstrap []string, topic string) {
	byCodec := map[int32][]*sarama.ProducerMessage{}
	for rows := json.NewDecoder(bufio.NewReader(os.Stdin)); rows.More(); {
		var row Row
		check(rows.Decode(&row))
		byCodec[row.Partition] = append(byCodec[row.Partition], message(topic, row))
	}
	for codec, messages := range byCodec {
		config := settings()
		config.Producer.Compression = sarama.CompressionCodec(codec)
		// One record batch, not one for each moment at which the messages happen to come.
		config.Producer.Flush.Messages = len(messages)
		producer, err := sarama.NewSyncProducer(bootstrap, config)
		check(err)
		check(producer.SendMessages(messages))
		check(producer.Close())
	}
}

func message(topic string, row Row) *sarama.ProducerMessage {
	made := &sarama.ProducerMessage{
		Topic: topic, Partition: row.Partition, Timestamp: time.UnixMilli(row.TimestampMs),
	}
	if row.Key != nil {
		made.Key = sarama.ByteEncoder(row.Key)
	}
	if row.Value != nil {
		made.Value = sarama.ByteEncoder(row.Value)
	}
	for _, header := range row.Headers {
		made.Headers = append(made.Headers, sarama.RecordHeader{Key: header.Key, Value: header.Value})
	}
	return made
}

func consume(bootstrap []string, topic string, count int) {
	consumer, err := sarama.NewConsumer(bootstrap, settings())
	check(err)
	partitions, err := consumer.Partitions(topic)
	check(err)
	messages := make(chan *sarama.ConsumerMessage)
	for _, partition := range partitions {
		reader, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
		check(err)
		go func() {
			for message := range reader.Messages() {
				messages <- message
			}
		}()
	}
	out := json.NewEncoder(os.Stdout)
	for ; count > 0; count-- {
		select {
		case message := <-messages:
			check(out.Encode(row(message)))
		case <-time.After(time.Minute):
			log.Fatalf("%d rows of %s did not come", count, topic)
		}
	}
}

func beMember(bootstrap []string, topic string, name string, session time.Duration) {
	config := settings()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Group.Session.Timeout = session
	config.Consumer.Group.Heartbeat.Interval = 100 * time.Millisecond
	config.Consumer.Offsets.AutoCommit.Interval = 100 * time.Millisecond
	group, err := sarama.NewConsumerGroup(bootstrap, name, config)
	check(err)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	handler := writer{out: json.NewEncoder(os.Stdout), lock: &sync.Mutex{}}
	for ctx.Err() == nil {
		if err := group.Consume(ctx, []string{topic}, handler); ctx.Err() == nil {
			check(err)
		}
	}
	check(group.Close())
}

type writer struct {
	out  *json.Encoder
	lock *sync.Mutex
}

func (writer) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (writer) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (w writer) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		w.lock.Lock()
		check(w.out.Encode(row(message)))
		w.lock.Unlock()
		session.MarkMessage(message, "")
	}
	return nil
}

func partition(count int32) {
	partitioners := []sarama.Partitioner{
		sarama.NewHashPartitioner(""), sarama.NewReferenceHashPartitioner(""),
		sarama.NewConsistentCRCHashPartitioner(""), sarama.NewMurmur2Partitioner(""),
	}
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	lines := bufio.NewReader(os.Stdin)
	for line, err := lines.ReadString('\n'); err == nil; line, err = lines.ReadString('\n') {
		key, err := base64.StdEncoding.DecodeString(line[:len(line)-1])
		check(err)
		for _, each := range partitioners {
			chosen, err := each.Partition(&sarama.ProducerMessage{Key: sarama.ByteEncoder(key)}, count)
			check(err)
			fmt.Fprintf(out, "%d ", chosen)
		}
		fmt.Fprintln(out)
	}
}

func row(message *sarama.ConsumerMessage) Row {
	made := Row{
		Partition: message.Partition, Offset: message.Offset, Key: message.Key, Value: message.Value,
		TimestampMs: message.Timestamp.UnixMilli(),
	}
	for _, header := range message.Headers {
		made.Headers = append(made.Headers, Header{Key: header.Key, Value: header.Value})
	}
	return made
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
