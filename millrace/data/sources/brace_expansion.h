// Braces in the URLs of sources, as shells and webdataset expand them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"

namespace millrace::data {

/// Returns the URLs that `url` stands for, in order: "{000..999}" is each number from the first to the last, with as
/// many digits if either begins with 0, and "{train,test}" each word. With several braces, the last one varies fastest.
/// Braces that hold neither are themselves. Errors: kInvalidArgument if it stands for more than 100,000 URLs.
Result<std::vector<std::string>> ExpandBraces(std::string_view url);

}  // namespace millrace::data
