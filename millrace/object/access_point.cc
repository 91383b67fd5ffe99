#include "millrace/object/access_point.h"

#include <algorithm>
#include <array>

#include "millrace/base/text.h"

namespace millrace::object {
namespace {

struct Partition {
  std::string_view name, suffix;
};
constexpr std::array<Partition, 3> kPartitions = {
    {{"aws", "amazonaws.com"}, {"aws-cn", "amazonaws.com.cn"}, {"aws-us-gov", "amazonaws.com"}}};

bool IsLabel(std::string_view text, std::size_t least, std::size_t most) {
  return text.size() >= least && text.size() <= most && text.front() != '-' && text.back() != '-' &&
         std::ranges::all_of(text, [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; });
}

}  // namespace

std::string AccessPoint::Arn() const {
  return fmt::format("arn:{}:s3:{}:{}:accesspoint/{}", partition, region, account, name);
}

std::string AccessPoint::Host() const {
  const auto* const found = std::ranges::find(kPartitions, partition, &Partition::name);
  return fmt::format("{}.s3-accesspoint.{}.{}", HostLabel(), region, found->suffix);
}

Result<AccessPoint> ParseAccessPoint(std::string_view text, std::string_view* rest) {
  constexpr std::string_view kForm = "arn:aws:s3:REGION:ACCOUNT:accesspoint/NAME";
  auto refuse = [&](std::string_view why) {
    return Fail(Code::kInvalidArgument, "\"{}\" names no access point of S3: {}", text.substr(0, 200), why);
  };
  std::array<std::string_view, 5> fields;  // "arn", partition, service, region, account
  std::string_view left = text;
  for (std::string_view& field : fields) {
    const std::size_t colon = left.find(':');
    if (colon == left.npos) return refuse(fmt::format("the form is {}", kForm));
    field = left.substr(0, colon);
    left.remove_prefix(colon + 1);
  }
  const auto& [arn, partition, service, region, account] = fields;
  if (arn != "arn" || std::ranges::find(kPartitions, partition, &Partition::name) == kPartitions.end()) {
    return refuse("the partition must be aws, aws-cn or aws-us-gov");
  }
  if (service != "s3")
    return refuse(fmt::format("those of {} cannot be read", service.empty() ? "no service" : service));
  constexpr std::string_view kResource = "accesspoint";
  if (!left.starts_with(kResource) || left.size() <= kResource.size() ||
      (left[kResource.size()] != '/' && left[kResource.size()] != ':')) {
    return refuse(fmt::format("for a bucket write s3://BUCKET; for an access point the form is {}", kForm));
  }
  left.remove_prefix(kResource.size() + 1);
  if (region.empty()) return refuse("access points of several regions are not supported; name one of a single region");
  if (!IsLabel(region, 1, 32)) return refuse("the region is malformed");
  if (account.size() != 12 || account.find_first_not_of("0123456789") != account.npos) {
    return refuse("an account has 12 digits");
  }
  const std::size_t end = std::min(left.find('/'), left.size());
  if (!IsLabel(left.substr(0, end), 3, 50)) {
    return refuse("its name must have 3 to 50 lower-case letters, digits and hyphens");
  }
  if (rest != nullptr) *rest = left.substr(end);
  if (rest == nullptr && end != left.size()) return refuse("nothing may follow the name");
  return AccessPoint{.partition = std::string(partition),
                     .region = std::string(region),
                     .account = std::string(account),
                     .name = std::string(left.substr(0, end))};
}

}  // namespace millrace::object
