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

static int client_key_is_loopback(const client_key *key)
{
    static const uint8_t v4[13] = {[10] = 0xff, [11] = 0xff, [12] = 127};
    const struct in6_addr v6 = IN6ADDR_LOOPBACK_INIT;
    return memcmp(key->address, v4, sizeof v4) == 0 || memcmp(key->address, &v6, sizeof v6) == 0;
}

/* Returns whether text is ":" and a port, between blanks, or blanks alone. */
static int is_port(const char *text)
{
    const size_t digits = *text == ':' ? strspn(text + 1, "0123456789") : 0;
    if (digits > 0) text += 1 + digits;
    return text[strspn(text, " \t")] == '\0';
}

/* Reads the last address of a list, such as 192.0.2.1, 192.0.2.1:80, 2001:db8::1 or [2001:db8::1]:80. Returns 0 if the
 * list does not end with an address. */
static int read_last(const char *list, client_key *out)
{
    const char *comma = strrchr(list, ',');
    char address[INET6_ADDRSTRLEN];
    struct in_addr v4;
    struct in6_addr v6;
    list = comma ? comma + 1 : list;
    list += strspn(list, " \t");
    const int has_brackets = *list == '[';
    list += has_brackets;
    const int is_v6 = has_brackets || strchr(list, ':') != strrchr(list, ':');
    const size_t n = strcspn(list, has_brackets ? "]" : is_v6 ? " \t" : ": \t");
    if (n >= sizeof address || (has_brackets && list[n] != ']') || !is_port(list + n + has_brackets)) return 0;
    memcpy(address, list, n);
    address[n] = '\0';
    if (!is_v6 && inet_pton(AF_INET, address, &v4) == 1)
        *out = key_of_v4(&v4);
    else if (is_v6 && inet_pton(AF_INET6, address, &v6) == 1)
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
    return forwarded && client_key_is_loopback(&key) && read_last(forwarded, &other) ? other : key;
}
