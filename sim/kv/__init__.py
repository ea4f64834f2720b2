"""Who holds which KV blocks: one `BlockStore` protocol, a family that counts and a family that knows contents."""
