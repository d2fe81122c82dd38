"""Messages between parties on a network: one process for each party, mutual TLS 1.3, peers pinned by
certificate.

    peers = {"shop": Peer("shop.example:7001", Certificate.read("shop.pem"))}
    with Endpoint(Identity.load("bank"), listen="0.0.0.0:7001", peers=peers) as endpoint:
        result = endpoint.run(program, run="r1", kinds=KINDS, settings=agreement.to_dict())
"""
