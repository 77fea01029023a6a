/* Tells clients apart, so that the queue is fair among them. */
#ifndef TOOLS_SERVE_CLIENT_KEY_H
#define TOOLS_SERVE_CLIENT_KEY_H

#include <stdint.h>
#include <sys/socket.h>

/* An IPv4 address, mapped to IPv6, or the network of an IPv6 address: its first 64 bits. */
typedef struct {
    uint8_t address[16];
} client_key;

/* Returns the client of a connection from `peer`. `forwarded`: the request's last X-Forwarded-For, or NULL. Its last
 * address, which the nearest proxy writes, counts if the peer is this machine. */
client_key client_key_of(const struct sockaddr *peer, const char *forwarded);

#endif
