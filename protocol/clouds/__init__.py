"""Tokens for the Kafka services of Azure, AWS and Google, from the vendors' libraries. See docs/clouds.md.

`sasl.oauthbearer.metadata.authentication.type` calls these functions. Call them from a function for
`sasl.oauthbearer.token.provider` to pass credentials of your own. The libraries are imported at the first call.

Each returns `(token, expires_at_s)`, the expiry in seconds since 1970, or raises an error of this package:
`ConfigurationError` if the library is not installed, `AuthenticationFailed` if it gives no token, `ConnectFailed` for
no answer within `timeout_s` and for failures that another attempt may resolve.
"""

from protocol.clouds.aws import aws_msk_iam_token, aws_web_identity_token
from protocol.clouds.azure import azure_token
from protocol.clouds.google import google_managed_kafka_token

__all__ = ["aws_msk_iam_token", "aws_web_identity_token", "azure_token", "google_managed_kafka_token"]
