"""The built-in providers of tokens for OAUTHBEARER, one file each."""
