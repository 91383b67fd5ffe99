// Any text is either a shared AWS file or an error that names a line; a comment behind the text changes nothing. A NUL
// byte separates the config file from the credentials file.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/object/s3/credentials/profile.h"

namespace {

using namespace millrace;
using object::s3::Profiles;

Result<Profiles> Load(const std::string& config, const std::string& credentials) {
  object::s3::Environment environment;
  environment.getenv = [](const char* name) -> std::optional<std::string> {
    if (std::string_view(name) == "HOME") return "/home/fuzz";
    return std::nullopt;
  };
  environment.read_file = [&](const std::filesystem::path& path) -> Result<std::string> {
    return path.filename() == "config" ? config : credentials;
  };
  return Profiles::Load(environment);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::size_t cut = std::min(text.find('\0'), size);
  const std::string config(text.substr(0, cut)), credentials(text.substr(std::min(cut + 1, size)));
  const auto profiles = Load(config, credentials);
  const auto again = Load(config + "\n# end\n", credentials + "\n\n; end");
  if (profiles.has_value() != again.has_value()) std::abort();
  if (!profiles) {
    if (profiles.error().message().find("/home/fuzz/.aws/") == std::string::npos) std::abort();
    return 0;
  }
  for (const char* name : {"default", "dev", ""}) {
    const auto *one = profiles->Find(name), *other = again->Find(name);
    if ((one == nullptr) != (other == nullptr) || (one != nullptr && *one != *other)) std::abort();
    (void)profiles->FindSsoSession(name);
    (void)profiles->Missing(name);
  }
  return 0;
}
