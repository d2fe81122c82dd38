"""The cryptography of blind training: the one product that needs encryption.

`interface` defines `cross`, the product U'V of two private matrices as shares (securefed.crypto.shares).
`rlwe` and `paillier` implement it. Nothing here decrypts on request: the party with the key reads masked
results only.
"""
