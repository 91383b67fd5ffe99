// YAML read strictly: unknown keys and wrong types are errors with file, line and column.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"

namespace millrace::config {

struct Tree;

/// A value in a YAML document, with the place it came from. Cheap to copy; the document lives as long as a Node does.
/// Not thread-safe. An absent node is false and gives defaults.
class Node {
 public:
  Node();
  ~Node();
  Node(const Node&);
  Node& operator=(const Node&);

  explicit operator bool() const;
  bool IsMap() const;
  bool IsSequence() const;
  bool IsScalar() const;

  /// "model.config.hidden_size"
  const std::string& path() const;
  /// "job.yaml:12:5" or "--set train.steps" for values set on the command line
  std::string Where() const;
  /// `job.yaml:12:5: train.steps: <what>`
  Error Invalid(std::string_view what) const;

  /// The member, or an absent node.
  Node operator[](std::string_view key) const;
  std::vector<Node> Elements() const;
  std::vector<std::string> Keys() const;

  Result<std::string> String() const;
  Result<std::int64_t> Int(std::int64_t least, std::int64_t most) const;
  Result<double> Number(double least, double most) const;
  Result<bool> Bool() const;

  /// Fails if this map has a key that is not in `known`, naming the nearest right one.
  Status RejectUnknown(std::span<const std::string_view> known) const;
  Status RejectUnknown(std::initializer_list<std::string_view> known) const {
    return RejectUnknown(std::span(known.begin(), known.size()));
  }

 private:
  friend class Document;
  struct Rep;
  std::shared_ptr<const Rep> rep_;
};

/// A parsed file with overrides applied.
class Document {
 public:
  /// Fails with line and column on a syntax error, a duplicate key or nesting beyond 32.
  static Result<Document> Parse(std::string_view text, std::string file_name);
  /// `--set train.optimizer.lr=1e-4`: the value is YAML. Creates maps on the way; fails where a scalar is in the way.
  Status Set(std::string_view assignment);
  Node Root() const;

 private:
  std::shared_ptr<Tree> tree_;
};

}  // namespace millrace::config
