#include "millrace/base/config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <span>

#include "millrace/base/text.h"

namespace millrace::config {
/// A document with the positions of its values. yaml-cpp knows the positions of parsed text; `assigned` has the origins
/// of assigned values.
struct Tree {
  YAML::Node root;
  std::string file_name;
  std::map<std::string, std::string> assigned;  ///< path → "--set path"
};

struct Node::Rep {
  std::shared_ptr<const Tree> document;
  YAML::Node yaml;
  std::string path;
  bool present = false;
};

Node::Node() : rep_(std::make_shared<const Rep>()) {}
Node::~Node() = default;
Node::Node(const Node&) = default;
Node& Node::operator=(const Node&) = default;

Node::operator bool() const { return rep_->present && !rep_->yaml.IsNull(); }
bool Node::IsMap() const { return rep_->present && rep_->yaml.IsMap(); }
bool Node::IsSequence() const { return rep_->present && rep_->yaml.IsSequence(); }
bool Node::IsScalar() const { return rep_->present && rep_->yaml.IsScalar(); }
const std::string& Node::path() const { return rep_->path; }

std::string Node::Where() const {
  if (!rep_->document) return {};
  for (std::string path = rep_->path; !path.empty();) {
    auto found = rep_->document->assigned.find(path);
    if (found != rep_->document->assigned.end()) return found->second;
    std::size_t parent = path.find_last_of(".[");
    path.resize(parent == std::string::npos ? 0 : parent);
  }
  YAML::Mark mark = rep_->present ? rep_->yaml.Mark() : YAML::Mark::null_mark();
  if (mark.is_null()) return rep_->document->file_name;
  return fmt::format("{}:{}:{}", rep_->document->file_name, mark.line + 1, mark.column + 1);
}

Error Node::Invalid(std::string_view what) const {
  std::string where = Where();
  return Error(Code::kInvalidArgument,
               fmt::format("{}{}{}{}{}", where, where.empty() ? "" : ": ", path(), path().empty() ? "" : ": ", what));
}

Node Node::operator[](std::string_view key) const {
  Rep child{rep_->document, {}, path().empty() ? std::string(key) : fmt::format("{}.{}", path(), key), false};
  if (IsMap()) {
    const YAML::Node& parent = rep_->yaml;  // const: the other operator[] would insert
    YAML::Node found = parent[std::string(key)];
    if (found) {
      child.yaml.reset(found);
      child.present = true;
    }
  }
  Node node;
  node.rep_ = std::make_shared<const Rep>(std::move(child));
  return node;
}

std::vector<Node> Node::Elements() const {
  std::vector<Node> elements;
  if (!IsSequence()) return elements;
  for (std::size_t i = 0; i < rep_->yaml.size(); ++i) {
    Node node;
    node.rep_ = std::make_shared<const Rep>(Rep{rep_->document, rep_->yaml[i], fmt::format("{}[{}]", path(), i), true});
    elements.push_back(std::move(node));
  }
  return elements;
}

std::vector<std::string> Node::Keys() const {
  std::vector<std::string> keys;
  if (IsMap())
    for (const auto& entry : rep_->yaml) keys.push_back(entry.first.Scalar());
  return keys;
}

Result<std::string> Node::String() const {
  if (!IsScalar()) return Fail(Invalid("should be text"));
  return rep_->yaml.Scalar();
}

Result<std::int64_t> Node::Int(std::int64_t least, std::int64_t most) const {
  std::int64_t value = 0;
  if (!IsScalar() || rep_->yaml.Tag() == "!" || !YAML::convert<std::int64_t>::decode(rep_->yaml, value))
    return Fail(Invalid(fmt::format("should be a whole number{}{}", IsScalar() ? ", not " : "",
                                    IsScalar() ? rep_->yaml.Scalar() : "")));
  if (value < least || value > most)
    return Fail(Invalid(fmt::format("should be from {} to {}, not {}", least, most, value)));
  return value;
}

Result<double> Node::Number(double least, double most) const {
  double value = 0;
  if (!IsScalar() || rep_->yaml.Tag() == "!" || !YAML::convert<double>::decode(rep_->yaml, value) || std::isnan(value))
    return Fail(Invalid(
        fmt::format("should be a number{}{}", IsScalar() ? ", not " : "", IsScalar() ? rep_->yaml.Scalar() : "")));
  if (value < least || value > most)
    return Fail(Invalid(fmt::format("should be from {} to {}, not {}", least, most, value)));
  return value;
}

Result<bool> Node::Bool() const {
  bool value = false;
  if (!IsScalar() || rep_->yaml.Tag() == "!" || !YAML::convert<bool>::decode(rep_->yaml, value))
    return Fail(Invalid("should be true or false"));
  return value;
}

Status Node::RejectUnknown(std::span<const std::string_view> known) const {
  if (!*this) return {};
  if (!IsMap()) return Fail(Invalid("should be a map of keys to values"));
  for (const auto& entry : rep_->yaml) {
    if (!entry.first.IsScalar()) return Fail(Invalid("has a key that is not text"));
    const std::string& key = entry.first.Scalar();
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    std::string problem = UnknownName("key", key, known);
    YAML::Mark mark = entry.first.Mark();
    std::string member = path().empty() ? key : fmt::format("{}.{}", path(), key);
    auto assigned = rep_->document->assigned.find(member);
    if (assigned != rep_->document->assigned.end() || mark.is_null())
      return Fail(Code::kInvalidArgument, "{}: {}", (*this)[key].Where(), problem);
    return Fail(Code::kInvalidArgument, "{}:{}:{}: {}{}{}", rep_->document->file_name, mark.line + 1, mark.column + 1,
                path(), path().empty() ? "" : ": ", problem);
  }
  return {};
}

namespace {

/// Bounds on files from outside. Job files have fewer than ten levels and some hundred values. CheckShape() recurses
/// once per level, and nested aliases let a short text describe exponentially many values.
constexpr int kMaxDepth = 32;
constexpr int kMaxNodes = 100'000;

/// Fails on duplicate keys, and beyond kMaxDepth and kMaxNodes.
Status CheckShape(const YAML::Node& node, const std::string& file_name, int depth, int& nodes) {
  auto at = [&](const YAML::Node& n) {
    return fmt::format("{}:{}:{}", file_name, n.Mark().line + 1, n.Mark().column + 1);
  };
  if (depth > kMaxDepth) {
    return Fail(Code::kInvalidArgument, "{}: nested deeper than {} levels, the most that are allowed", at(node),
                kMaxDepth);
  }
  if (++nodes > kMaxNodes)
    return Fail(Code::kInvalidArgument, "{}: more than {} values, the most that are allowed", at(node), kMaxNodes);
  if (node.IsSequence())
    for (const YAML::Node& element : node) MR_TRY(CheckShape(element, file_name, depth + 1, nodes));
  if (node.IsMap()) {
    std::set<std::string> seen;
    for (const auto& entry : node) {
      if (entry.first.IsScalar() && !seen.insert(entry.first.Scalar()).second) {
        return Fail(Code::kInvalidArgument, "{}: key \"{}\" is given twice; remove one of them", at(entry.first),
                    entry.first.Scalar());
      }
      MR_TRY(CheckShape(entry.second, file_name, depth + 1, nodes));
    }
  }
  return {};
}

/// Returns whether a line, counted from 0, begins with blanks that have a tab among them.
bool IsIndentedByTab(std::string_view text, int line) {
  for (int i = 0; i < line && !text.empty(); ++i) text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
  return text.substr(0, text.find_first_not_of(" \t")).contains('\t');
}

Result<YAML::Node> Load(std::string_view text, const std::string& file_name) {
  try {
    YAML::Node root = YAML::Load(std::string(text));
    int nodes = 0;
    MR_TRY(CheckShape(root, file_name, 0, nodes));
    return root;
  } catch (const YAML::Exception& error) {
    // The parser may notice a tab only in the next line.
    for (const int line : {error.mark.line, error.mark.line - 1, error.mark.line + 1}) {
      if (line < 0 || !IsIndentedByTab(text, line)) continue;
      return Fail(Code::kInvalidArgument, "{}:{}: a tab cannot indent in YAML; use spaces", file_name, line + 1);
    }
    return Fail(Code::kInvalidArgument, "{}:{}:{}: {}", file_name, error.mark.line + 1, error.mark.column + 1,
                error.msg);
  }
}

}  // namespace

Result<Document> Document::Parse(std::string_view text, std::string file_name) {
  if (text.size() > 4 * 1024 * 1024)
    return Fail(Code::kInvalidArgument, "{}: larger than 4 MiB, the most that is allowed", file_name);
  YAML::Node root = MR_TRY(Load(text, file_name));
  if (root.IsNull()) root = YAML::Node(YAML::NodeType::Map);
  Document document;
  document.tree_ = std::make_shared<Tree>(Tree{root, std::move(file_name), {}});
  return document;
}

Status Document::Set(std::string_view assignment) {
  std::size_t equals = assignment.find('=');
  if (equals == std::string_view::npos || equals == 0)
    return Fail(Code::kInvalidArgument, "--set {}: write it as key.path=value", assignment);
  std::string path(assignment.substr(0, equals)), where = fmt::format("--set {}", path);
  YAML::Node value = MR_TRY(Load(assignment.substr(equals + 1), where));
  YAML::Node at = tree_->root;
  for (std::string_view key : Split(path, '.')) {
    if (at.IsDefined() && !at.IsMap() && !at.IsNull()) {
      return Fail(Code::kInvalidArgument, "{}: \"{}\" is below a value that is not a map; set the key above it instead",
                  where, key);
    }
    YAML::Node next = at[std::string(key)];  // an absent one comes into being when assigned
    at.reset(next);
  }
  at = value;
  tree_->assigned[path] = where;
  return {};
}

Node Document::Root() const {
  Node node;
  node.rep_ = std::make_shared<const Node::Rep>(Node::Rep{tree_, tree_->root, "", true});
  return node;
}

}  // namespace millrace::config
