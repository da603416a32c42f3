"""`pykafka`: the command line for operators of queries. Needs click and rich, and neither Spark nor Java.

pykafka groups describe orders-etl --bootstrap-server broker-1:9092
"""
