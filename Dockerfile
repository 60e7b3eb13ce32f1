# The command `leasehold` alone: a static program, the authorities of TLS, and nothing else.
#
#   docker build -t leasehold .
#   docker run --rm -e LEASEHOLD_URL=redis://HOST:6379 leasehold ls
#
# An image that has a command to run copies the program:
#
#   COPY --from=leasehold /usr/bin/leasehold /usr/bin/leasehold
#   ENTRYPOINT ["/usr/bin/leasehold", "run", "nightly", "--"]
#
# scripts/image runs these steps without a registry.
FROM rust:1.95-slim-bookworm AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates musl-tools \
    && rm -rf /var/lib/apt/lists/* \
    && rustup target add "$(uname -m)-unknown-linux-musl"
WORKDIR /src
COPY . .
RUN scripts/package "$(uname -m)-unknown-linux-musl" /out

FROM scratch
# TLS (rediss://) trusts these authorities. For a private one, mount its file and name it with --cacert.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/LICENSE-MIT /usr/share/doc/leasehold/LICENSE-MIT
COPY --from=build /out/LICENSE-APACHE /usr/share/doc/leasehold/LICENSE-APACHE
COPY --from=build /out/leasehold /usr/bin/leasehold
USER 65532:65532
ENTRYPOINT ["/usr/bin/leasehold"]
