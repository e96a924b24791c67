package main

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

const (
	nodes        = 3
	leadersMove  = 60 * time.Millisecond
	longestDelay = 30 * time.Millisecond
)

var retriable = []*kerr.Error{
	kerr.NotLeaderForPartition,
	kerr.NotEnoughReplicas,
	kerr.KafkaStorageError,
	kerr.RequestTimedOut,
	kerr.UnknownTopicOrPartition,
	kerr.LeaderNotAvailable,
}

// serve is a cluster whose leaders move all the time, and that hangs up, refuses and delays one in ten of the requests
// to produce. After a line on its stdin leaders stay where they are. With a version of Kafka it does none of that, and
// speaks what that version does.
func serve(topic string, partitions int32, version string) error {
	options := []kfake.Opt{
		kfake.NumBrokers(nodes),
		kfake.SeedTopics(partitions, topic),
		kfake.WithLogger(kfake.BasicLogger(os.Stderr, kfake.LogLevelWarn)),
	}
	if version != "" {
		versions := kversion.FromString(version)
		if versions == nil {
			return fmt.Errorf("no version %q of Kafka", version)
		}
		options = append(options, kfake.MaxVersions(versions))
	}
	cluster, err := kfake.NewCluster(options...)
	if err != nil {
		return err
	}
	defer cluster.Close()
	// Of nil nothing ever comes.
	var moves <-chan time.Time
	if version == "" {
		disturb(cluster)
		moves = time.Tick(leadersMove)
	}
	fmt.Println(strings.Join(cluster.ListenAddrs(), ","))

	said := make(chan struct{})
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			said <- struct{}{}
		}
		close(said)
	}()
	for {
		select {
		case _, open := <-said:
			if !open {
				return nil
			}
			moves = nil
			fmt.Println("settled")
		case <-moves:
			cluster.ShufflePartitionLeaders()
		}
	}
}

func disturb(cluster *kfake.Cluster) {
	cluster.ControlKey(int16(kmsg.Produce), func(request kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		switch rand.Intn(40) {
		case 0:
			return nil, errors.New("hung up on purpose"), true
		case 1, 2:
			return refusal(request.(*kmsg.ProduceRequest)), nil, true
		case 3:
			cluster.SleepControl(func() { time.Sleep(time.Duration(rand.Int63n(int64(longestDelay)))) })
		}
		return nil, nil, false
	})
}

// refusal is one error, that another try may not meet, for all partitions of the request.
func refusal(request *kmsg.ProduceRequest) kmsg.Response {
	response := request.ResponseKind().(*kmsg.ProduceResponse)
	code := retriable[rand.Intn(len(retriable))].Code
	for _, topic := range request.Topics {
		refused := kmsg.NewProduceResponseTopic()
		refused.Topic, refused.TopicID = topic.Topic, topic.TopicID
		for _, partition := range topic.Partitions {
			of := kmsg.NewProduceResponseTopicPartition()
			of.Partition, of.ErrorCode = partition.Partition, code
			refused.Partitions = append(refused.Partitions, of)
		}
		response.Topics = append(response.Topics, refused)
	}
	return response
}
