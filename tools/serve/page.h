/* The page to try the service, as read-only data (page.S). */
#ifndef TOOLS_SERVE_PAGE_H
#define TOOLS_SERVE_PAGE_H

#include <stddef.h>

extern const char page_html[], page_html_end[], page_css[], page_css_end[], page_js[], page_js_end[];

static inline size_t page_html_size(void)
{
    return (size_t)(page_html_end - page_html);
}

static inline size_t page_css_size(void)
{
    return (size_t)(page_css_end - page_css);
}

static inline size_t page_js_size(void)
{
    return (size_t)(page_js_end - page_js);
}

#endif
