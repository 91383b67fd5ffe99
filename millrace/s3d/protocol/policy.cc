#include "millrace/s3d/protocol/policy.h"

#include <algorithm>
#include <array>

#include "millrace/base/text.h"

namespace millrace::s3d {
namespace {

/// A text or a list of texts.
Result<std::vector<std::string>> Texts(const Json& json, std::string_view member) {
  const Json* value = JsonFind(json, member);
  std::vector<std::string> texts;
  auto add = [&](const Json& text) {
    if (text.is_string()) texts.push_back(text.get<std::string>());
    return text.is_string();
  };
  const bool good = value != nullptr && (value->is_array() ? std::ranges::all_of(*value, add) : add(*value));
  if (!good || texts.empty()) {
    return Fail(Code::kInvalidArgument, "policy: {} must be a text or a list of texts", member);
  }
  return texts;
}

/// Wildcards of IAM: * and ?.
bool Matches(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0, star = pattern.npos, mark = 0;
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || (pattern[p] == text[t] && pattern[p] != '*'))) {
      ++p;
      ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = t;
    } else if (star != pattern.npos) {
      p = star + 1;
      t = ++mark;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == pattern.npos;
}

bool MatchesAny(const std::vector<std::string>& patterns, std::string_view text) {
  return std::ranges::any_of(patterns, [&](const std::string& pattern) { return Matches(pattern, text); });
}

struct Action {
  std::string_view operation, action;
};
/// Operations whose action has another name.
constexpr auto kActions = std::to_array<Action>({
    {"ListBuckets", "ListAllMyBuckets"},
    {"ListObjects", "ListBucket"},
    {"ListObjectsV2", "ListBucket"},
    {"HeadBucket", "ListBucket"},
    {"ListObjectVersions", "ListBucketVersions"},
    {"ListMultipartUploads", "ListBucketMultipartUploads"},
    {"ListParts", "ListMultipartUploadParts"},
    {"HeadObject", "GetObject"},
    {"CopyObject", "PutObject"},
    {"CreateMultipartUpload", "PutObject"},
    {"UploadPart", "PutObject"},
    {"UploadPartCopy", "PutObject"},
    {"CompleteMultipartUpload", "PutObject"},
});

std::string ActionOf(std::string_view operation) {
  const auto* const found = std::ranges::find(kActions, operation, &Action::operation);
  return fmt::format("s3:{}", found == kActions.end() ? operation : found->action);
}

std::string ResourceOf(std::string_view bucket, std::string_view key) {
  if (bucket.empty()) return "arn:aws:s3:::*";
  return key.empty() ? fmt::format("arn:aws:s3:::{}", bucket) : fmt::format("arn:aws:s3:::{}/{}", bucket, key);
}

}  // namespace

Result<Policy::Statement> Policy::ParseStatement(const Json& json) {
  constexpr auto kMembers = std::to_array<std::string_view>({"Sid", "Effect", "Action", "Resource", "Condition"});
  if (!json.is_object()) return Fail(Code::kInvalidArgument, "policy: a statement must be an object");
  for (const auto& [name, value] : json.items()) {
    if (std::ranges::find(kMembers, name) == kMembers.end()) {
      return Fail(Code::kInvalidArgument,
                  "policy: {} is not understood; expected Sid, Effect, Action, Resource or Condition", name);
    }
  }
  Statement statement;
  const std::string effect = MR_TRY(JsonString(json, "Effect"));
  if (effect != "Allow" && effect != "Deny")
    return Fail(Code::kInvalidArgument, "policy: the effect {:?}; expected Allow or Deny", effect);
  statement.allows = effect == "Allow";
  statement.actions = MR_TRY(Texts(json, "Action"));
  statement.resources = MR_TRY(Texts(json, "Resource"));
  const Json* condition = JsonFind(json, "Condition");
  if (condition == nullptr) return statement;
  const Json* like = condition->is_object() && condition->size() == 1 ? JsonFind(*condition, "StringLike") : nullptr;
  if (like == nullptr || !like->is_object() || like->size() != 1) {
    return Fail(Code::kInvalidArgument, "policy: only the condition StringLike on s3:prefix is understood");
  }
  statement.limits_prefix = true;
  statement.prefixes = MR_TRY(Texts(*like, "s3:prefix"));
  return statement;
}

Result<std::unique_ptr<Policy>> Policy::Parse(std::string_view json) {
  const Json document = MR_TRY(ParseJson(json, "policy"));
  const Json* statements = JsonFind(document, "Statement");
  if (statements == nullptr || !statements->is_array()) {
    return Fail(Code::kInvalidArgument, "policy: it has no list named Statement; add one");
  }
  auto policy = std::make_unique<Policy>();
  for (const Json& one : *statements) {
    Statement statement = MR_TRY(ParseStatement(one));
    policy->statements_.push_back(std::move(statement));
  }
  return policy;
}

bool Policy::Allows(const Asked& asked) const {
  bool allowed = false;
  for (const Statement& statement : statements_) {
    if (!MatchesAny(statement.actions, asked.action) || !MatchesAny(statement.resources, asked.resource)) continue;
    // A condition on a value that the request does not have does not hold.
    if (statement.limits_prefix && (asked.prefix == nullptr || !MatchesAny(statement.prefixes, *asked.prefix)))
      continue;
    if (!statement.allows) return false;
    allowed = true;
  }
  return allowed;
}

Reply<void> Policy::Require(const Asked& asked) const {
  if (!Allows(asked)) {
    return Refuse("AccessDenied", fmt::format("the policy does not allow {} on {}", asked.action, asked.resource));
  }
  MutexLock lock(mutex_);
  used_.insert(asked.action);
  return {};
}

Reply<void> Policy::Check(const PolicyRequest& request) const {
  if (request.operation == "DeleteObjects") return {};
  const Asked asked{.action = ActionOf(request.operation),
                    .resource = ResourceOf(request.bucket, request.key),
                    .prefix = request.prefix};
  MR_TRY(Require(asked));
  if (request.copy_source.empty()) return {};
  // Cut before it is decoded, as where the copy is made: a key may have a '?'.
  auto source = PercentDecode(request.copy_source.substr(0, request.copy_source.find('?')));
  if (!source) return Refuse("InvalidArgument", "Invalid copy source encoding");
  std::string_view path = *source;
  if (path.starts_with('/')) path.remove_prefix(1);
  return Require({.action = "s3:GetObject", .resource = fmt::format("arn:aws:s3:::{}", path)});
}

Reply<void> Policy::CheckDelete(std::string_view bucket, std::string_view key) const {
  return Require({.action = "s3:DeleteObject", .resource = ResourceOf(bucket, key)});
}

bool Policy::HidesAbsence(std::string_view bucket) const {
  return !Allows({.action = "s3:ListBucket", .resource = ResourceOf(bucket, "")});
}

std::set<std::string> Policy::used() const {
  MutexLock lock(mutex_);
  return used_;
}

}  // namespace millrace::s3d
