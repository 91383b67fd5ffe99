// A strict reader of YAML. Unknown keys and wrong types are errors that name file, line and column.
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

/// A value in a YAML document, with its position in the file. Cheap to copy. Each Node keeps the document alive. Not
/// thread-safe. An absent node converts to false, has no elements and no keys.
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

  /// Returns the keys from the root to this node: "model.config.hidden_size".
  const std::string& path() const;
  /// Returns "job.yaml:12:5", or "--set train.steps" for values set on the command line.
  std::string Where() const;
  /// Returns a kInvalidArgument error `job.yaml:12:5: train.steps: <what>`.
  Error Invalid(std::string_view what) const;

  /// Returns the member of that name, or an absent node.
  Node operator[](std::string_view key) const;
  std::vector<Node> Elements() const;
  std::vector<std::string> Keys() const;

  Result<std::string> String() const;
  Result<std::int64_t> Int(std::int64_t least, std::int64_t most) const;
  Result<double> Number(double least, double most) const;
  Result<bool> Bool() const;

  /// Errors: kInvalidArgument if this node is present and is no map, or has a key that is not in `known`. The message
  /// suggests the nearest known key.
  Status RejectUnknown(std::span<const std::string_view> known) const;
  Status RejectUnknown(std::initializer_list<std::string_view> known) const {
    return RejectUnknown(std::span(known.begin(), known.size()));
  }

 private:
  friend class Document;
  struct Rep;
  std::shared_ptr<const Rep> rep_;
};

/// A parsed file and the values that override it. One owner.
class Document {
 public:
  /// Errors: kInvalidArgument with line and column on a syntax error, a duplicate key, more than 32 levels, or more
  /// than 100,000 values (aliases are counted each time they are used).
  static Result<Document> Parse(std::string_view text, std::string file_name);
  /// Applies an assignment of the command line such as "train.optimizer.lr=1e-4". The value is YAML. Creates the maps
  /// on the way to the key.
  /// Errors: kInvalidArgument if a scalar is in the way.
  Status Set(std::string_view assignment);
  Node Root() const;

 private:
  std::shared_ptr<Tree> tree_;
};

}  // namespace millrace::config
