"""Operations on whole tensors: element by element, row by row, along an axis."""
