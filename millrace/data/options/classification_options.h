// The options by which records are read as texts with a class.
#pragma once

#include <string>
#include <vector>

namespace millrace::data {

/// Plain data. The defaults are those of SST-2.
struct ClassificationOptions {
  std::string text = "sentence";  ///< field of the text
  std::string pair;               ///< field of a second text; empty: there is none
  std::string label = "label";    ///< field of the class
  /// The names of the classes in the order of their numbers. Empty: the label is the number.
  std::vector<std::string> classes;
  bool operator==(const ClassificationOptions&) const = default;
};

}  // namespace millrace::data
