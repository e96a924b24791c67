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
// to produce. After a line on its stdin leaders stay where they are.
func serve(topic string, partitions int32) error {
	cluster, err := kfake.NewCluster(
		kfake.NumBrokers(nodes),
		kfake.SeedTopics(partitions, topic),
		kfake.WithLogger(kfake.BasicLogger(os.Stderr, kfake.LogLevelWarn)),
	)
	if err != nil {
		return err
	}
	defer cluster.Close()
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
	fmt.Println(strings.Join(cluster.ListenAddrs(), ","))

	said := make(chan struct{})
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			said <- struct{}{}
		}
		close(said)
	}()
	moves := time.NewTicker(leadersMove)
	defer moves.Stop()
	for {
		select {
		case _, open := <-said:
			if !open {
				return nil
			}
			moves.Stop()
			fmt.Println("settled")
		case <-moves.C:
			cluster.ShufflePartitionLeaders()
		}
	}
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
