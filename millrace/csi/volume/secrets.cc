#include "millrace/csi/volume/secrets.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "millrace/csi/volume/mount_options.h"

namespace millrace::csi {
namespace {

struct SecretName {
  std::string_view name, variable;
};
constexpr auto kNames = std::to_array<SecretName>({
    {"AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY_ID"},
    {"AWS_SECRET_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY"},
    {"AWS_SESSION_TOKEN", "AWS_SESSION_TOKEN"},
    {"AWS_REGION", "AWS_REGION"},
    {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL"},
    {"key_id", "AWS_ACCESS_KEY_ID"},
    {"access_key", "AWS_SECRET_ACCESS_KEY"},
    {"accessKeyID", "AWS_ACCESS_KEY_ID"},
    {"secretAccessKey", "AWS_SECRET_ACCESS_KEY"},
    {"sessionToken", "AWS_SESSION_TOKEN"},
    {"region", "AWS_REGION"},
    {"endpoint", "AWS_ENDPOINT_URL"},
});

// In the order of object/s3/credentials/credentials.h. A volume may set the first three.
constexpr std::size_t kKeys = 3;
constexpr auto kIdentity = std::to_array<std::string_view>({
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "MILLRACE_PROFILE",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "MILLRACE_SSE_C_KEY_FILE",
    "MILLRACE_SSE_C_SOURCE_KEY_FILE",
    "MILLRACE_NO_SIGN_REQUEST",
});

struct Variable {
  std::string_view name, value;
};
/// The shared files and the machine's role are the driver's, too.
constexpr auto kFixed = std::to_array<Variable>({
    {"AWS_CONFIG_FILE", "/dev/null"},
    {"AWS_SHARED_CREDENTIALS_FILE", "/dev/null"},
    {"AWS_EC2_METADATA_DISABLED", "true"},
});
constexpr auto kHarmless = std::to_array<std::string_view>({"AWS_REGION", "AWS_ENDPOINT_URL", "AWS_MAX_ATTEMPTS"});
constexpr std::string_view kRoleVariable = "AWS_ROLE_ARN";  // with the token that the mounter writes

}  // namespace

Status CheckVolumeEnvironment(const std::map<std::string, std::string>& environment) {
  for (const auto& [name, value] : environment) {
    const auto identity = std::ranges::find(kIdentity, name);
    const auto fixed = std::ranges::find(kFixed, name, &Variable::name);
    const bool allowed = identity != kIdentity.end() ? value.empty() || name == kRoleVariable ||
                                                           identity - kIdentity.begin() < std::ptrdiff_t{kKeys}
                         : fixed != kFixed.end() ? value == fixed->value
                                                 : std::ranges::find(kHarmless, name) != kHarmless.end();
    if (!allowed) return Fail(Code::kInvalidArgument, "a volume may not be mounted with the variable {}", name);
  }
  return {};
}

bool HidesDriverIdentity(const std::map<std::string, std::string>& environment) {
  auto has = [&](std::string_view name) { return environment.contains(std::string(name)); };
  return std::ranges::all_of(kIdentity, has) && std::ranges::all_of(kFixed, has, &Variable::name);
}

Result<std::map<std::string, std::string>> IdentityEnvironment(const Secrets& secrets) {
  std::map<std::string, std::string> environment;
  for (const std::string_view variable : kIdentity) environment[std::string(variable)] = "";
  for (const Variable& fixed : kFixed) environment[std::string(fixed.name)] = fixed.value;
  for (const SecretName& known : kNames) {
    const auto found = secrets.find(std::string(known.name));
    if (found == secrets.end()) continue;
    if (found->second.find_first_of(std::string_view("\n\r\0", 3)) != std::string::npos) {
      return Fail(Code::kInvalidArgument, "the secret's value {} has a line break; make it with `printf`, not `echo`",
                  known.name);
    }
    if (known.variable == "AWS_REGION") MR_TRY(CheckRegion(found->second));
    environment[std::string(known.variable)] = found->second;
  }
  const bool has_id = !environment["AWS_ACCESS_KEY_ID"].empty(),
             has_key = !environment["AWS_SECRET_ACCESS_KEY"].empty();
  if (has_id != has_key) {
    return Fail(
        Code::kInvalidArgument, "the secret has {}",
        has_id ? "AWS_ACCESS_KEY_ID but no AWS_SECRET_ACCESS_KEY" : "AWS_SECRET_ACCESS_KEY but no AWS_ACCESS_KEY_ID");
  }
  return environment;
}

}  // namespace millrace::csi
