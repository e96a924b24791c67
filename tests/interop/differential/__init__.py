"""The same requests to Apache Kafka and to the embedded broker, and what each of them answers."""
