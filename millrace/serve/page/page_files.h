// The files of the chat page, embedded at build time (embed.cmake). Internal to the page.
#pragma once

#include <string_view>

namespace millrace::serve {

/// page.html, with {{style}} and {{script}} where the other two go.
extern const std::string_view kPageMarkup;
extern const std::string_view kPageStyle;   ///< page.css
extern const std::string_view kPageScript;  ///< the scripts, joined

}  // namespace millrace::serve
