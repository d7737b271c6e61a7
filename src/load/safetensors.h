// The safetensors format: an 8-byte length, a JSON header, the data of all tensors without gaps.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "tensor/host_tensor.h"
#include "zipage/status.h"

namespace zipage {

// The tensors of one file, in the order of their data; views into `bytes`. `origin` names the file in errors.
// Strict: every name once, known dtypes, shapes without zeros, shape x dtype = bytes, data without overlap or gap up
// to the file's end. Data may be unaligned. kDataLoss when the file contradicts itself, with one sentence naming
// tensor, expected and found.
Result<std::vector<HostTensor>> parse_safetensors(std::span<const std::byte> bytes, const std::string& origin);

}  // namespace zipage
