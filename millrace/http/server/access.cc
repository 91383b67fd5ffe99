#include "millrace/http/server/access.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "millrace/base/hash/constant_time.h"
#include "millrace/base/text.h"
#include "millrace/http/private_file.h"
#include "millrace/http/server/request_head.h"

namespace millrace::http {
namespace {

constexpr std::uint64_t kMaxKeyFileBytes = 64 * kKiB;  // a thousand keys of 64 characters: more is another file
constexpr std::size_t kLeastKeyBytes = 16;             // shorter keys can be guessed
constexpr std::uint8_t kLoopbackNet = 127;             // 127.0.0.0/8

}  // namespace

ApiKeys::ApiKeys(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) digests_.push_back(Sha256(AsBytes(key)));
}

Result<ApiKeys> ApiKeys::Load(const std::filesystem::path& file) {
  const std::string text = MR_TRY(ReadPrivateFile(file, kMaxKeyFileBytes));
  std::vector<std::string> keys;
  int number = 0;
  for (std::string_view line : Split(text, '\n')) {
    ++number;
    const std::string_view key = Trim(line);
    if (key.empty() || key.starts_with('#')) continue;
    if (key.size() < kLeastKeyBytes || !IsVisible(key)) {
      return Fail(Code::kInvalidArgument,
                  "line {} of {} is no key: write at least {} characters of visible ASCII, for example from "
                  "`openssl rand -hex 32`",
                  number, file.string(), kLeastKeyBytes);
    }
    keys.emplace_back(key);
  }
  if (keys.empty()) {
    return Fail(Code::kInvalidArgument, "{} has no key: write one a line, for example from `openssl rand -hex 32`",
                file.string());
  }
  return ApiKeys(keys);
}

std::optional<int> ApiKeys::Find(const Headers& headers) const {
  constexpr std::string_view kScheme = "bearer ";
  const std::string_view given = headers.Get("Authorization");
  if (given.size() <= kScheme.size() || ToLower(given.substr(0, kScheme.size())) != kScheme) return std::nullopt;
  const Sha256Digest digest = Sha256(AsBytes(Trim(given.substr(kScheme.size()))));
  std::optional<int> found;
  for (std::size_t i = 0; i < digests_.size(); ++i) {
    if (ConstantTimeEqual(AsText(digests_[i]), AsText(digest))) found = static_cast<int>(i);
  }
  return found;
}

Result<ApiKeys> OpenAccess(std::string_view listen, const AccessOptions& options, std::string_view how) {
  if (!options.key_file.empty()) return ApiKeys::Load(options.key_file);
  if (options.insecure || IsLoopbackHost(HostOfAuthority(listen))) return ApiKeys();
  return Fail(Code::kInvalidArgument, "{} can be reached from other machines, and nothing asks who they are: give {}",
              listen, how);
}

std::string_view HostOfAuthority(std::string_view authority) {
  const std::size_t end = authority.starts_with('[') ? authority.find(']') + 1 : authority.find(':');
  const std::string_view host = authority.substr(0, end);
  std::string_view port = authority.substr(host.size());
  if (port.empty()) return host;
  if (port.front() != ':') return {};
  port.remove_prefix(1);
  return std::ranges::all_of(port, [](char c) { return c >= '0' && c <= '9'; }) ? host : std::string_view();
}

bool IsLoopbackHost(std::string_view host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (ToLower(host) == "localhost") return true;
  const std::string text(host);
  in_addr v4{};
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == kLoopbackNet;
  in6_addr v6{};
  if (inet_pton(AF_INET6, text.c_str(), &v6) != 1) return false;
  constexpr int kMappedOffset = 12;  // ::ffff:a.b.c.d
  return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[kMappedOffset] == kLoopbackNet);
}

}  // namespace millrace::http
