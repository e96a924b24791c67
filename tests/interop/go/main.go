// Kafka clients written in Go, and franz-go's fake of a cluster, for the tests beside this folder.
//
//	clients write CLIENT BOOTSTRAP TOPIC CODEC  < lines of a partition, a tab and a value
//	clients read CLIENT BOOTSTRAP TOPIC GROUP COUNT  > the same of COUNT records, as a member of GROUP, which commits
//	clients copy BOOTSTRAP SOURCE TARGET GROUP ID SIZE SECONDS: copies SOURCE to TARGET in transactions of at most SIZE
//		records and at least SECONDS, by franz-go's session, until SIGTERM
//	clients serve TOPIC PARTITIONS VERSION  > bootstrap servers; its leaders stay after a line on stdin, with which it
//		ends; where VERSION is not empty it is a quiet cluster that speaks as that version of Kafka does
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

const deadline = 60 * time.Second

type record struct {
	partition int32
	value     []byte
}

type client struct {
	write func(ctx context.Context, bootstrap []string, topic, codec string, records []record) error
	read  func(ctx context.Context, bootstrap []string, topic, group string, count int, got func(record)) error
}

var clients = map[string]client{
	"franz-go": {franzWrite, franzRead},
	"kafka-go": {kafkaGoWrite, kafkaGoRead},
	"sarama":   {saramaWrite, saramaRead},
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	switch {
	case len(arguments) == 5 && arguments[0] == "write":
		chosen, err := named(arguments[1])
		if err != nil {
			return err
		}
		records, err := parse()
		if err != nil {
			return err
		}
		return chosen.write(ctx, strings.Split(arguments[2], ","), arguments[3], arguments[4], records)
	case len(arguments) == 6 && arguments[0] == "read":
		chosen, err := named(arguments[1])
		if err != nil {
			return err
		}
		count, err := strconv.Atoi(arguments[5])
		if err != nil {
			return err
		}
		out := bufio.NewWriter(os.Stdout)
		defer out.Flush()
		return chosen.read(ctx, strings.Split(arguments[2], ","), arguments[3], arguments[4], count, func(r record) {
			fmt.Fprintf(out, "%d\t%s\n", r.partition, r.value)
		})
	case len(arguments) == 8 && arguments[0] == "copy":
		a := arguments[1:]
		return copyTopic(strings.Split(a[0], ","), a[1], a[2], a[3], a[4], a[5], a[6])
	case len(arguments) == 4 && arguments[0] == "serve":
		partitions, err := strconv.ParseInt(arguments[2], 10, 32)
		if err != nil {
			return err
		}
		return serve(arguments[1], int32(partitions), arguments[3])
	}
	return fmt.Errorf("not understood: %q", arguments)
}

func named(name string) (client, error) {
	chosen, known := clients[name]
	if !known {
		return client{}, fmt.Errorf("no client %q", name)
	}
	return chosen, nil
}

func parse() ([]record, error) {
	var records []record
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		partition, value, found := strings.Cut(lines.Text(), "\t")
		number, err := strconv.ParseInt(partition, 10, 32)
		if err != nil || !found {
			return nil, fmt.Errorf("no partition and value: %q", lines.Text())
		}
		records = append(records, record{int32(number), []byte(value)})
	}
	return records, lines.Err()
}
