#include <filesystem>
#include <string_view>
#include <utility>

#include "millrace/object/connection.h"

#include "millrace/base/result.h"

namespace millrace::object {

Result<Location> Locate(Connection& connection, std::string_view text) {
  Url url = MR_TRY(ParseUrl(text));
  Location location{MR_TRY(connection.OpenStore(url)), url.key};
  if (url.scheme != Url::Scheme::kFile) return location;
  bool folder = url.key.ends_with('/');
  std::error_code error;
  std::filesystem::path absolute = std::filesystem::absolute(url.key, error).lexically_normal();
  if (error) return Fail(ErrnoError(error.value(), fmt::format("resolving {}", text)));
  location.key = absolute.string().substr(1);
  if (folder && !location.key.empty() && !location.key.ends_with('/')) location.key += '/';
  return location;
}

}  // namespace millrace::object
