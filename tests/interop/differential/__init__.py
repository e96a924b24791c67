"""The same requests to Apache Kafka and to the embedded broker, and a comparison of their responses."""
