// A half-open range of bytes of a text.
//
// Thread-safety: values.
#pragma once

#include <cstddef>

namespace zipage {

struct ByteRange {
  size_t begin = 0, end = 0;
  size_t size() const { return end - begin; }
};

}  // namespace zipage
