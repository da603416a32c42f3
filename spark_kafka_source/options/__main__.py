"""Print docs/options.md."""

from spark_kafka_source.options.markdown import markdown

print(markdown())
