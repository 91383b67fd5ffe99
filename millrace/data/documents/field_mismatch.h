// Tells a user which fields records have, if they lack those that a template or a layout reads.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/data/documents/document_encoder.h"
#include "millrace/data/records/data_object.h"

namespace millrace::data {

/// The difference between a record and the fields that are read of it.
struct FieldMismatch {
  std::vector<std::string> missing;  ///< the fields that are read and that the record lacks; not empty
  std::vector<std::string> present;  ///< the fields that the record has, in its order
  bool in_all = false;               ///< every record that was looked at lacks fields

  /// Returns "the records have no field tilte; they have title, text", with advice for conversations.
  std::string ToString() const;
};

/// Reads the first records of an object, some hundred at most. Returns the mismatch of the first record that lacks a
/// field that the form needs, or nothing. Blocks on a read of at most a frame.
/// Errors: those of the store; kCorrupt if the object breaks the rules of its format.
Result<std::optional<FieldMismatch>> FindFieldMismatch(const DataObject& object, const DocumentForm& form,
                                                       object::Call call);

/// Reads the first records of an object. If layout auto can write none of them, returns why not, with the words of the
/// model's own template: "the first record cannot be written (template_error): …". Returns "" otherwise, and for other
/// layouts. Blocks and fails as FindFieldMismatch.
Result<std::string> FindTemplateRefusal(const DataObject& object, const DocumentForm& form, object::Call call);

}  // namespace millrace::data
