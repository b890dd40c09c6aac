"""Operations: what each computes, said once as statements, in a file for each family."""
