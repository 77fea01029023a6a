#include "tools/serve/client_key.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

static client_key key_of_v4(const struct in_addr *a)
{
    client_key key = {.address = {[10] = 0xff, [11] = 0xff}};
    memcpy(key.address + 12, a, sizeof *a);
    return key;
}

static client_key key_of_v6(const struct in6_addr *a)
{
    client_key key = {.address = {0}};
    if (IN6_IS_ADDR_V4MAPPED(a) || IN6_IS_ADDR_LOOPBACK(a))
        memcpy(key.address, a, sizeof key.address);
    else
        memcpy(key.address, a, 8);
    return key;
}

static int is_loopback(const client_key *key)
{
    static const uint8_t v4[13] = {[10] = 0xff, [11] = 0xff, [12] = 127};
    const struct in6_addr v6 = IN6ADDR_LOOPBACK_INIT;
    return memcmp(key->address, v4, sizeof v4) == 0 || memcmp(key->address, &v6, sizeof v6) == 0;
}

/* Reads the last address of a list. Returns 0 if the list does not end with an address. */
static int read_last(const char *list, client_key *out)
{
    const char *comma = strrchr(list, ',');
    struct in_addr v4;
    struct in6_addr v6;
    list = comma ? comma + 1 : list;
    list += strspn(list, " \t");
    if (inet_pton(AF_INET, list, &v4) == 1)
        *out = key_of_v4(&v4);
    else if (inet_pton(AF_INET6, list, &v6) == 1)
        *out = key_of_v6(&v6);
    else
        return 0;
    return 1;
}

client_key client_key_of(const struct sockaddr *peer, const char *forwarded)
{
    client_key key = {.address = {0}}, other;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    if (peer && peer->sa_family == AF_INET) {
        memcpy(&v4, peer, sizeof v4);
        key = key_of_v4(&v4.sin_addr);
    } else if (peer && peer->sa_family == AF_INET6) {
        memcpy(&v6, peer, sizeof v6);
        key = key_of_v6(&v6.sin6_addr);
    }
    return forwarded && is_loopback(&key) && read_last(forwarded, &other) ? other : key;
}
