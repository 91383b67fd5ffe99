#include "millrace/object/s3/credentials/settings.h"

#include <algorithm>
#include <charconv>

#include "millrace/base/text.h"
#include "millrace/http/server/access.h"
#include "millrace/object/access_point.h"

namespace millrace::object::s3 {
namespace {

/// The first value that is not empty.
std::string FirstOf(std::initializer_list<std::string> candidates) {
  for (const std::string& candidate : candidates) {
    if (!candidate.empty()) return candidate;
  }
  return "";
}

std::string AwsHost(std::string_view region) {
  return fmt::format("s3.{}.amazonaws.com{}", region, region.starts_with("cn-") ? ".cn" : "");
}

/// The host of an authority, without the port.
std::string HostName(std::string_view authority) {
  return std::string(authority.starts_with('[') ? authority.substr(0, authority.find(']') + 1)
                                                : authority.substr(0, authority.find(':')));
}

Status ParseEndpoint(std::string_view url, Settings& settings) {
  auto invalid = [&](std::string_view why) {
    return Fail(Code::kInvalidArgument, "endpoint URL {:?}: {}; give it as https://host[:port]", url, why);
  };
  std::size_t colon = url.find("://");
  if (colon == url.npos) return invalid("it has no scheme");
  settings.scheme = ToLower(url.substr(0, colon));
  if (settings.scheme != "http" && settings.scheme != "https") return invalid("the scheme is neither http nor https");
  std::string_view rest = url.substr(colon + 3);
  if (rest.find_first_of("?#@ \r\n") != rest.npos) return invalid("only host, port and path may stand there");
  std::size_t slash = rest.find('/');
  settings.authority = ToLower(rest.substr(0, slash));
  if (settings.authority.empty()) return invalid("it has no host");
  settings.base_path = slash == rest.npos ? "" : std::string(rest.substr(slash));
  while (settings.base_path.ends_with('/')) settings.base_path.pop_back();
  std::string_view own_port = settings.scheme == "https" ? ":443" : ":80";
  if (settings.authority.ends_with(own_port)) settings.authority.erase(settings.authority.size() - own_port.size());
  settings.loopback = IsLoopback(settings.authority);
  return {};
}

/// Whether the bucket can be a label of a host name that a wildcard certificate covers.
bool IsHostLabel(std::string_view bucket) {
  if (bucket.size() < 3 || bucket.size() > 63 || bucket.front() == '-' || bucket.back() == '-') return false;
  return std::ranges::all_of(bucket,
                             [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; });
}

Result<int> Attempts(const ConnectOptions& options, const std::string& configured) {
  if (options.max_attempts > 0) return options.max_attempts;
  if (configured.empty()) return 10;
  int attempts = 0;
  auto [end, error] = std::from_chars(configured.data(), configured.data() + configured.size(), attempts);
  if (error != std::errc() || end != configured.data() + configured.size() || attempts < 1) {
    return Fail(Code::kInvalidArgument, "AWS_MAX_ATTEMPTS (or max_attempts) is {:?}; give a number from 1", configured);
  }
  return attempts;
}

/// Reads a setting of the AWS SDKs, which the environment has as `variable` and a profile as `name`.
Result<bool> WhenRequired(const std::string& configured, std::string_view variable, std::string_view name) {
  const std::string value = ToLower(configured.empty() ? "when_supported" : configured);
  if (value == "when_required") return true;
  if (value == "when_supported") return false;
  return Fail(Code::kInvalidArgument, "{} (or {}) is {:?}; give when_supported or when_required", variable, name,
              value);
}

Status CheckCustomerKeys(const Settings& settings, const ConnectOptions& options) {
  for (const std::string& key : {settings.customer_key, settings.copy_source_key}) {
    if (key.empty()) continue;
    if (key.size() != 32)
      return Fail(Code::kInvalidArgument, "an encryption key must have 32 bytes, not {}", key.size());
    if ((settings.scheme != "https" || !options.verify_tls) && !settings.loopback) {
      return Fail(Code::kInvalidArgument,
                  "encryption keys are not sent to {}://{}, where others could read them; use https{}", settings.scheme,
                  settings.authority, options.verify_tls ? "" : " without --no-verify-ssl");
    }
  }
  return {};
}

bool IsAccount(std::string_view text) { return text.size() == 12 && text.find_first_not_of("0123456789") == text.npos; }

}  // namespace

bool IsLoopback(std::string_view authority) { return http::IsLoopbackHost(http::HostOfAuthority(authority)); }

Result<Settings> Settings::Resolve(const ConnectOptions& options, const Profiles& profiles,
                                   const Environment& environment) {
  auto env = [&](const char* name) { return environment.getenv(name).value_or(""); };
  Settings settings;
  std::string named = FirstOf({options.profile, env("AWS_PROFILE"), env("AWS_DEFAULT_PROFILE")});
  settings.profile = named.empty() ? "default" : named;
  const Profile* found = profiles.Find(settings.profile);
  if (!found && !named.empty()) return Fail(profiles.Missing(named));
  const Profile none, &profile = found ? *found : none;

  settings.region =
      FirstOf({options.region, env("AWS_REGION"), env("AWS_DEFAULT_REGION"), Member(profile, "region"), "us-east-1"});
  settings.ca_bundle = FirstOf({options.ca_bundle, env("AWS_CA_BUNDLE"), Member(profile, "ca_bundle")});
  settings.no_sign_request = options.no_sign_request;
  settings.request_payer = options.request_payer;
  settings.first_contact = options.first_contact;
  settings.max_attempts =
      MR_TRY(Attempts(options, FirstOf({env("AWS_MAX_ATTEMPTS"), Member(profile, "max_attempts")})));

  settings.checksums_when_required = MR_TRY(
      WhenRequired(FirstOf({env("AWS_REQUEST_CHECKSUM_CALCULATION"), Member(profile, "request_checksum_calculation")}),
                   "AWS_REQUEST_CHECKSUM_CALCULATION", "request_checksum_calculation"));
  settings.validation_when_required = MR_TRY(
      WhenRequired(FirstOf({env("AWS_RESPONSE_CHECKSUM_VALIDATION"), Member(profile, "response_checksum_validation")}),
                   "AWS_RESPONSE_CHECKSUM_VALIDATION", "response_checksum_validation"));

  std::string configured;
  if (ToLower(env("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")) != "true") {
    const Profile* services = MR_TRY(profiles.ServicesOf(settings.profile, profile));
    configured = FirstOf({env("AWS_ENDPOINT_URL_S3"), env("AWS_ENDPOINT_URL"),
                          services ? Member(*services, "s3.endpoint_url") : "", Member(profile, "s3.endpoint_url"),
                          Member(profile, "endpoint_url")});
  }
  std::string url = FirstOf({options.endpoint_url, configured});
  settings.aws = url.empty();
  MR_TRY(ParseEndpoint(settings.aws ? "https://" + AwsHost(settings.region) : url, settings));

  settings.new_objects = options.new_objects;
  settings.expected_bucket_owner = options.expected_bucket_owner;
  if (!settings.expected_bucket_owner.empty() && !IsAccount(settings.expected_bucket_owner)) {
    return Fail(Code::kInvalidArgument, "\"{}\" is no account; expected the 12 digits of the owner of the bucket",
                settings.expected_bucket_owner);
  }
  settings.customer_key = options.customer_key;
  settings.copy_source_key = options.copy_source_key;
  MR_TRY(CheckCustomerKeys(settings, options));

  std::string style = Member(profile, "s3.addressing_style");
  settings.path_style = options.path_style.value_or(style.empty() || style == "auto" ? !settings.aws : style == "path");
  return settings;
}

std::optional<Settings::Address> Settings::AddressOfRedirect(std::string_view location) const {
  std::string prefix = scheme + "://";
  if (!location.starts_with(prefix)) return std::nullopt;
  location.remove_prefix(prefix.size());
  std::size_t slash = location.find('/');
  std::string host = ToLower(location.substr(0, slash));
  std::string_view path = slash == location.npos ? "/" : location.substr(slash);
  path = path.substr(0, path.find('?'));
  auto printable = [](unsigned char c) { return c > 0x20 && c < 0x7f; };
  if (host.find_first_of("@#?\\") != host.npos || !std::ranges::all_of(location, printable)) return std::nullopt;
  std::string name = HostName(host), own = HostName(authority);
  bool within = name == own || name.ends_with("." + own) ||
                (aws && (name.ends_with(".amazonaws.com") || name.ends_with(".amazonaws.com.cn")));
  if (!within) return std::nullopt;
  return Address{.scheme = scheme, .host = std::move(host), .path = std::string(path)};
}

Status Settings::CheckBucket(std::string_view bucket) const {
  if (!IsArn(bucket)) return {};
  MR_TRY(ParseAccessPoint(bucket));
  const std::string name = HostName(authority);
  const bool number = name.starts_with('[') || name.find_first_not_of("0123456789.") == name.npos;
  if (!number) return {};
  return Fail(
      Code::kInvalidArgument,
      "the endpoint {} has no hosts for access points, since its own is a number; name the endpoint, or use the "
      "bucket behind {}",
      authority, bucket);
}

Settings::Address Settings::AddressOf(std::string_view bucket, std::string_view key,
                                      std::string_view bucket_region) const {
  Address address{.scheme = scheme, .host = authority, .path = base_path};
  if (aws && !bucket_region.empty() && bucket_region != region) address.host = AwsHost(bucket_region);
  if (IsArn(bucket)) {
    const AccessPoint point = ParseAccessPoint(bucket).value();
    address.host = aws ? point.Host() : fmt::format("{}.{}", point.HostLabel(), authority);
  } else if (!bucket.empty()) {
    if (!path_style && IsHostLabel(bucket)) {
      address.host = std::string(bucket) + "." + address.host;
    } else {
      address.path += "/" + std::string(bucket);
    }
  }
  if (!key.empty()) address.path += "/" + PercentEncode(key, /*keep_slash=*/true);
  if (address.path.empty()) address.path = "/";
  return address;
}

}  // namespace millrace::object::s3
