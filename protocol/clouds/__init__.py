"""Tokens for the Kafka services of Azure, AWS and Google, from the vendors' libraries. See docs/clouds.md.

`sasl.oauthbearer.metadata.authentication.type` calls these functions. Call them from a function for
`sasl.oauthbearer.token.provider` to pass credentials of your own. Each returns a token and its expiry, in seconds since
1970, or raises an error of this package within `timeout_s`. The libraries are imported at the first call.
"""

from protocol.clouds.aws import aws_msk_iam_token, aws_web_identity_token
from protocol.clouds.azure import azure_token
from protocol.clouds.google import google_managed_kafka_token

__all__ = ["aws_msk_iam_token", "aws_web_identity_token", "azure_token", "google_managed_kafka_token"]
