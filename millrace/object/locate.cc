#include <filesystem>

#include "millrace/object/open.h"

namespace millrace::object {

Result<Location> Locate(Connection& connection, std::string_view url_text) {
  Url url = MR_TRY(ParseUrl(url_text));
  std::string key = url.key;
  if (url.scheme == Url::Scheme::kFile) {
    std::error_code error;
    auto path = std::filesystem::absolute(url.key, error);
    if (error) return Fail(ErrnoError(error.value(), fmt::format("cannot resolve {}", url.key)));
    key = path.lexically_normal().relative_path().string();
  }
  return Location{MR_TRY(connection.OpenStore(url)), std::move(key)};
}

}  // namespace millrace::object
