// One row of a weight into a panel.
//
// Thread-safety: all functions may run concurrently on different columns.
#pragma once

#include "ops/cpu/kernels.h"
#include "tensor/host_tensor.h"

namespace zipage::cpu {

// The smallest kind that holds rows of this type without harm.
PanelKind panel_kind(const HostTensor& tensor);
// What both kinds' rows can share.
PanelKind common_kind(PanelKind a, PanelKind b);
int64_t panel_bytes(PanelKind kind, int64_t in_features);

// Row `row` of `tensor` becomes column `column` of the panel. REQUIRES: common_kind(panel_kind(tensor), kind) == kind.
void pack_row(const HostTensor& tensor, int64_t row, PanelKind kind, int column, std::byte* panel);
// And back, as fp32.
void unpack_row(const std::byte* panel, PanelKind kind, int column, int64_t in_features, float* out);

}  // namespace zipage::cpu
