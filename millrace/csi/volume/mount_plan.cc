#include "millrace/csi/volume/mount_plan.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "millrace/base/json.h"
#include "millrace/base/text.h"
#include "millrace/csi/volume/mount_options.h"
#include "millrace/object/url.h"

namespace millrace::csi {
namespace {

constexpr char kAuthentication[] = "authenticationSource";
constexpr char kOptions[] = "mountOptions";
constexpr char kRole[] = "roleArn";
constexpr char kTokens[] = "csi.storage.k8s.io/serviceAccount.tokens";
constexpr char kAudience[] = "sts.amazonaws.com";
constexpr char kCache[] = "cache";
constexpr char kCacheLimit[] = "cacheEmptyDirSizeLimit";

// Attributes of Mountpoint's driver that say how its pods are made. This driver makes no pods, so it ignores them.
constexpr auto kIgnored = std::to_array<std::string_view>({
    "stsRegion",
    "cacheEmptyDirMedium",
    "cacheEphemeralStorageClassName",
    "cacheEphemeralStorageResourceRequest",
    "mountpointContainerResourcesRequestsCpu",
    "mountpointContainerResourcesRequestsMemory",
    "mountpointContainerResourcesLimitsCpu",
    "mountpointContainerResourcesLimitsMemory",
});
constexpr auto kKnown = std::to_array<std::string_view>(
    {kBucketAttribute, kPrefixAttribute, kEndpointAttribute, kRegionAttribute, kProvisionedAttribute,
     kCapacityAttribute, kEnforceAttribute, kAuthentication, kRole, kOptions, kCache, kCacheLimit});

template <class Range>
bool Contains(const Range& range, std::string_view value) {
  return std::ranges::find(range, value) != range.end();
}

std::string Attribute(const std::map<std::string, std::string>& attributes, const std::string& name) {
  const auto found = attributes.find(name);
  return found == attributes.end() ? "" : found->second;
}

Status CheckNames(const std::map<std::string, std::string>& attributes) {
  for (const auto& [name, value] : attributes) {
    if (name.contains('/')) continue;  // added by Kubernetes
    if (Contains(kKnown, name) || Contains(kIgnored, name)) continue;
    return Fail(Code::kInvalidArgument, "{}", UnknownName("volume attribute", name, kKnown));
  }
  return {};
}

/// "s3://BUCKET" of the attribute.
Result<std::string> BucketUrl(const std::map<std::string, std::string>& attributes) {
  const std::string bucket = Attribute(attributes, kBucketAttribute);
  if (bucket.empty())
    return Fail(Code::kInvalidArgument, "the volume names no bucket; set volumeAttributes.bucketName");
  const object::Url url = MR_TRY(object::ParseUrl("s3://" + bucket));
  if (url.bucket != bucket) return Fail(Code::kInvalidArgument, "\"{}\" is not the name of a bucket", bucket);
  return "s3://" + bucket;
}

/// Who writes pods may reach a bucket with keys of their own, at the endpoint that the driver's administrator chose: an
/// endpoint of theirs could be any service that the node reaches and the pod does not.
Status CheckInline(const VolumeUse& use, const MountOptions& words) {
  for (const std::string& flag : words.flags) {
    if (IsInlineFlag(flag)) continue;
    return Fail(Code::kPermissionDenied, "an inline volume may not set {}", flag.substr(2, flag.find('=') - 2));
  }
  if (words.disk_cache || !words.environment.empty() || !Attribute(use.attributes, kCache).empty() ||
      !Attribute(use.attributes, kEndpointAttribute).empty()) {
    return Fail(Code::kPermissionDenied, "an inline volume may set neither endpoint, cache nor attempts");
  }
  if (use.secrets.contains("AWS_ENDPOINT_URL") || use.secrets.contains("endpoint")) {
    return Fail(Code::kPermissionDenied, "the secret of an inline volume may not name an endpoint: it is the driver's");
  }
  return {};
}

/// The prefix of a volume: its attribute, then the mount option, with a slash between them. Where neither has the
/// slash, versions before wrote none, so that "team" and "a/" were "teama/", the folder of somebody else. Such a volume
/// may be in use, and must not show other data one day: it is refused until it says which of the two it means.
Result<std::string> JoinPrefix(const std::string& attribute, const MountOptions& words) {
  std::string prefix = attribute + words.prefix;
  if (!attribute.empty() && !words.prefix.empty()) {
    const bool has_slash = attribute.ends_with('/') || words.prefix.starts_with('/');
    if (attribute.ends_with('/') && words.prefix.starts_with('/')) prefix = attribute + words.prefix.substr(1);
    if (!has_slash && !words.joins_as_written) {
      return Fail(Code::kInvalidArgument,
                  "prefix \"{}\" and the mount option prefix={}: write prefix=/{}, or add prefix-join=as-written for "
                  "\"{}\"",
                  attribute, words.prefix, words.prefix, prefix);
    }
  } else if (words.joins_as_written) {
    return Fail(Code::kInvalidArgument, "prefix-join=as-written is for volumes with two prefixes; leave it out");
  }
  // Without the slash, the volume of "team" would show "team-b/".
  if (!prefix.empty() && !prefix.ends_with('/')) prefix += '/';
  if (prefix.starts_with('/')) {
    return Fail(Code::kInvalidArgument, "the prefix must not begin with a slash, as \"{}\" does", prefix);
  }
  return prefix;
}

/// The token that kubelet made for the pod's service account, and the role to assume with it.
Status AddPodIdentity(const VolumeUse& use, MountPlan& plan) {
  if (!use.secrets.empty()) {
    return Fail(Code::kInvalidArgument,
                "authenticationSource is \"pod\", and the volume has a secret, too; leave one out");
  }
  const std::string role = Attribute(use.attributes, kRole);
  if (role.empty()) {
    return Fail(Code::kInvalidArgument,
                "authenticationSource is \"pod\": set roleArn to the role that the pods assume");
  }
  const std::string tokens = Attribute(use.attributes, kTokens);
  if (tokens.empty()) {
    return Fail(Code::kInvalidArgument,
                "kubelet gave no token of the pod's service account; the CSIDriver must ask for it");
  }
  auto json = ParseJson(tokens, "the tokens of the pod");
  const Json* audience = json ? JsonFind(*json, kAudience) : nullptr;
  auto token = audience ? JsonString(*audience, "token") : Result<std::string>("");
  if (!token || token->empty()) {
    return Fail(Code::kInvalidArgument, "kubelet gave no token for {}", kAudience);  // never the text: it has tokens
  }
  plan.token = *std::move(token);
  plan.environment["AWS_ROLE_ARN"] = role;
  return {};
}

Status AddGroup(const VolumeUse& use, const MountOptions& words, MountPlan& plan) {
  if (use.group.empty()) return {};
  if (use.group.find_first_not_of("0123456789") != std::string::npos || use.group.size() > 10) {
    return Fail(Code::kInvalidArgument, "the volume's group \"{}\" is no number", use.group);
  }
  // The modes that Mountpoint's driver uses with an fsGroup; and what is made in a directory has its group.
  if (!words.sets_group) plan.flags.push_back("--gid=" + use.group);
  if (!words.sets_modes) plan.flags.insert(plan.flags.end(), {"--file-mode=0660", "--dir-mode=02770"});
  return {};
}

/// The capacity as a quota. That of a provisioned volume is in its ownership mark, so that it can grow.
Status AddQuota(const VolumeUse& use, const std::string& prefix, MountPlan& plan) {
  const std::string enforce = Attribute(use.attributes, kEnforceAttribute);
  if (enforce.empty() || enforce == "false") return {};
  if (enforce != "true") {
    return Fail(Code::kInvalidArgument, "{} is \"{}\"; it must be \"true\" or \"false\"", kEnforceAttribute, enforce);
  }
  const std::string capacity = Attribute(use.attributes, kCapacityAttribute);
  const bool number = !capacity.empty() && capacity.find_first_not_of("0123456789") == capacity.npos;
  if (!number || capacity.size() > 18) {
    return Fail(Code::kInvalidArgument, "{} needs {}, a number of bytes, not \"{}\"", kEnforceAttribute,
                kCapacityAttribute, capacity);
  }
  plan.flags.push_back("--quota=" + capacity);
  constexpr std::string_view kData = "data/";
  if (Attribute(use.attributes, kProvisionedAttribute) == "true" && prefix.ends_with(kData)) {
    plan.flags.push_back(fmt::format("--quota-object={}volume.json", prefix.substr(0, prefix.size() - kData.size())));
  }
  return {};
}

}  // namespace

bool IsEphemeral(const std::map<std::string, std::string>& attributes) {
  return Attribute(attributes, "csi.storage.k8s.io/ephemeral") == "true";
}

std::string PodOf(const std::map<std::string, std::string>& attributes) {
  const std::string name = Attribute(attributes, "csi.storage.k8s.io/pod.name");
  return name.empty() ? "" : Attribute(attributes, "csi.storage.k8s.io/pod.namespace") + "/" + name;
}

Result<Authentication> AuthenticationOf(const std::map<std::string, std::string>& attributes) {
  const std::string source = Attribute(attributes, kAuthentication);
  if (source.empty() || source == "driver") return Authentication::kDriver;
  if (source == "secret") return Authentication::kSecret;
  if (source == "pod") return Authentication::kPod;
  return Fail(Code::kInvalidArgument, "authenticationSource is \"{}\"; it must be \"driver\", \"secret\" or \"pod\"",
              source);
}

Result<MountPlan> PlanMount(const VolumeUse& use) {
  MR_TRY(CheckNames(use.attributes));
  MountPlan plan;
  plan.url = MR_TRY(BucketUrl(use.attributes));
  std::vector<std::string> options = use.mount_options;
  const std::string inline_options = Attribute(use.attributes, kOptions);
  for (const std::string_view option : Split(inline_options, ',')) options.emplace_back(option);
  MountOptions words = MR_TRY(ParseMountOptions(options));
  const bool ephemeral = IsEphemeral(use.attributes);
  const bool unsigned_requests = Contains(words.flags, "--no-sign-request");
  if (ephemeral) MR_TRY(CheckInline(use, words));
  MR_TRY(CheckRegion(Attribute(use.attributes, kRegionAttribute)));
  const Authentication authentication = MR_TRY(AuthenticationOf(use.attributes));
  if (authentication == Authentication::kPod) {
    MR_TRY(AddPodIdentity(use, plan));
  } else if (use.secrets.empty() && !unsigned_requests) {
    if (ephemeral) {
      return Fail(
          Code::kPermissionDenied,
          "an inline volume needs keys of its own: name a Secret of the pod's namespace in nodePublishSecretRef");
    }
    if (authentication == Authentication::kSecret) {
      return Fail(Code::kInvalidArgument,
                  "authenticationSource is \"secret\", but the volume has no nodePublishSecretRef");
    }
  }
  plan.driver_identity = use.secrets.empty() && !unsigned_requests && authentication != Authentication::kPod;
  if (!plan.driver_identity) plan.environment.merge(MR_TRY(IdentityEnvironment(use.secrets)));
  if (!use.secrets.empty() && !unsigned_requests && plan.environment["AWS_ACCESS_KEY_ID"].empty()) {
    return Fail(Code::kInvalidArgument, "the volume's secret has no AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
  }
  plan.environment.insert(words.environment.begin(), words.environment.end());

  if (Attribute(use.attributes, kProvisionedAttribute) != "true") plan.flags.emplace_back("--strict");
  for (const auto& [attribute, flag] :
       {std::pair(kEndpointAttribute, "--endpoint-url"), {kRegionAttribute, "--region"}}) {
    const std::string value = Attribute(use.attributes, attribute);
    if (!value.empty()) plan.flags.push_back(fmt::format("{}={}", flag, value));
  }
  plan.flags.insert(plan.flags.end(), words.flags.begin(), words.flags.end());
  const std::string prefix = MR_TRY(JoinPrefix(Attribute(use.attributes, kPrefixAttribute), words));
  if (!prefix.empty()) plan.flags.push_back("--prefix=" + prefix);
  MR_TRY(AddQuota(use, prefix, plan));
  if (words.read_only || use.read_only) plan.flags.emplace_back("--read-only");
  MR_TRY(AddGroup(use, words, plan));
  plan.disk_cache = words.disk_cache || !Attribute(use.attributes, kCache).empty();
  if (const std::string limit = Attribute(use.attributes, kCacheLimit); plan.disk_cache && !limit.empty()) {
    // Kubernetes writes Mi and Gi for powers of 1024.
    plan.flags.push_back(fmt::format("--max-cache-size={}{}", limit, limit.ends_with('i') ? "B" : ""));
  }
  return plan;
}

}  // namespace millrace::csi
