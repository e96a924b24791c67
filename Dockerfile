# The demo: docker build -t aioproducer-demo . && docker run --rm aioproducer-demo
# With a Kafka of your own: docker run --rm --network host aioproducer-demo make demo BOOTSTRAP=host:9092
FROM debian:bookworm-slim

RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates make python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home demo

USER demo
WORKDIR /home/demo
COPY --chown=demo:demo . .
ENV PIP_NO_CACHE_DIR=1
RUN make demo-venv demo-spark-venv

CMD ["make", "demo"]
